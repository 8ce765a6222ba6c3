//! Connections to OSDs, made on the control side: the data side reserves them and goes on meanwhile.

use auth::Identity;
use base::map::ClusterMap;
use ring::{ConnectionId, Stream, Waker};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tokio::sync::{mpsc, watch};

/// A connection that the data side wants.
#[derive(Debug)]
pub(super) struct Dial {
    /// Reserved for it.
    pub(super) connection: ConnectionId,
    /// To whom.
    pub(super) address: SocketAddr,
}

/// What became of it.
#[derive(Debug)]
pub(super) struct Dialled {
    pub(super) connection: ConnectionId,
    /// The connection, on which both sides have proved who they are; or why there is none.
    pub(super) result: Result<Stream, String>,
}

/// What connections are made with.
#[derive(Clone)]
pub(super) struct Dialler {
    pub(super) identity: Identity,
    pub(super) maps: watch::Receiver<Arc<ClusterMap>>,
    pub(super) dialled: Sender<Dialled>,
    pub(super) waker: Waker,
}

impl Dialler {
    /// Makes connections until nobody wants any more.
    pub(super) async fn run(self, mut dials: mpsc::Receiver<Dial>) {
        while let Some(dial) = dials.recv().await {
            tokio::spawn(self.clone().dial(dial));
        }
    }

    async fn dial(self, dial: Dial) {
        let Dial { connection, address } = dial;
        let map = self.maps.borrow().clone();
        let dialled = auth::dial(&self.identity, &map, address).await;
        let result = dialled.and_then(|channel| {
            let (socket, session) = channel.into_parts().map_err(|error| error.to_string())?;
            Ok(Stream::new(socket, session))
        });
        // It fails only when the data side is gone.
        if self.dialled.send(Dialled { connection, result }).is_ok() {
            self.waker.wake();
        }
    }
}

//! The vhost-user door: a volume as a virtio disk of a virtual machine, without a kernel in between.
//!
//! A hypervisor, the *front-end*, shares its guest's memory over a Unix socket, and this process, the *back-end*, serves the rings that
//! are in it (<https://qemu-project.gitlab.io/qemu/interop/vhost-user.html>, VIRTIO 1.2). Data are copied once, between the guest's
//! memory and the buffers from which they are sent and checked.
//!
//! - [`Backend`] is a volume with a socket.
//! - `conversation` hears the front-end, on a thread of its own; what it says is done by the thread of `device`.
//! - `device` has the rings and the volume; `ring` is one of them, `chain` and `request` read what is in it.
//! - `memory` is the guest's, `in_flight` what outlives this process, `dirty` what a migration needs.
//!
//! A guest is not trusted: each index, length and address in its memory is judged where it is read, once. A driver that breaks the rules
//! loses its ring until the guest starts it anew; others of the same guest go on. A front-end is trusted with its guest and with the
//! volume, and its messages are judged all the same: what is wrong ends its connection, with a reason that is logged.
//!
//! When things fail: what was taken from a ring is noted in memory that the front-end keeps. After this process died, the next one is
//! given it and does again what had not ended. It attaches the volume anew, so that what the dead one had sent takes effect never more:
//! at its start, or, where the volume is only opened, before the first change.
//! When a front-end's connection ends, what it had under way is waited for before the next is served. A volume that is lost ends this
//! process: requests that are under way stay noted.

mod chain;
mod configuration;
mod conversation;
mod device;
mod dirty;
mod in_flight;
mod memory;
mod request;
mod ring;
#[cfg(test)]
mod tests;

pub use request::{JUDGED_AT, judge};

use crate::listen::{Listen, ListenError, Listener, note_at};
use crate::stopper::Stopper;
use ::ring::{Event, FREE_WITHIN, ReactorOptions, when_free};
use conversation::{Host, Order, Orders};
use device::Device;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use volume::{AttachError, ClusterAccess, LoopError, OpenAs, SessionOptions, VolumeLoop};

/// The most rings that a disk may have.
pub const QUEUES_MAX: u16 = 64;
/// Connections to OSDs.
const CONNECTIONS_MAX: u32 = 4096;
/// How long what is under way may take when it is to stop. The next back-end does again what had not ended.
const FAREWELL_LIMIT: Duration = Duration::from_secs(5);
/// How often it is looked around while somebody waits for what another left.
const TICK: Duration = Duration::from_secs(1);

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct BackendOptions {
    /// The cluster whose volume it is.
    pub cluster: ClusterAccess,
    /// The volume, or a snapshot, as VOLUME@SNAPSHOT.
    pub volume: String,
    /// The socket's path.
    pub socket: PathBuf,
    /// How many rings the disk offers: up to [`QUEUES_MAX`], one for each processor of a guest as a rule.
    pub queues: u16,
    /// How the volume is had. Of what is opened to be read the guest sees a disk that cannot be written to.
    pub open: OpenAs,
    /// How long an operation may take before the guest is told that it failed; `None` lets it wait for ever.
    pub timeout: Option<Duration>,
}

/// Why a back-end could not start, or had to end.
#[derive(thiserror::Error, Debug)]
pub enum BackendError {
    /// The volume could not be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Nobody can connect.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The volume cannot be worked on any more, or the reactor failed.
    #[error("the volume is not served any more: {0}")]
    Loop(#[from] LoopError),
}

/// A running back-end. It belongs to the thread that made it.
pub struct Backend {
    device: Device,
    orders: Receiver<Order>,
    host: Arc<Host>,
    conversations: Option<JoinHandle<()>>,
    /// It removes the socket's name when dropped.
    listener: Listener,
    stopper: Stopper,
    events: Vec<Event>,
}

impl Backend {
    /// Attaches or opens the volume, and listens. A front-end is served from [`Self::run`] on.
    ///
    /// # Errors
    /// When the volume is not there or attached elsewhere, or nobody can connect to that place.
    ///
    /// # Panics
    /// If there are no rings or too many, which whoever reads options refuses.
    pub fn open(options: &BackendOptions) -> Result<Backend, BackendError> {
        assert!((1..=QUEUES_MAX).contains(&options.queues), "a disk has 1 to {QUEUES_MAX} rings");
        // First, so that a socket in use is told of without an attach that fences somebody.
        let listen = Listen::Unix(options.socket.clone());
        let is_in_use = |error: &ListenError| matches!(error, ListenError::InUse(_));
        let mut listener = when_free(FREE_WITHIN, is_in_use, || Listener::bind(&listen))?;
        let session = SessionOptions {
            cluster: options.cluster.clone(),
            volumes: vec![options.volume.clone()],
            open: options.open,
            timeout: options.timeout,
            purpose: "millpond vhost-user".to_owned(),
            note: Some(note_at(&options.socket)),
        };
        let reactor = ReactorOptions { connections_max: CONNECTIONS_MAX, ..ReactorOptions::default() };
        let mut volume = VolumeLoop::attach(session, reactor)?;
        let waker = volume.reactor().waker();
        let stopper = Stopper::new(waker.clone());
        let device = Device::new(volume, options.open == OpenAs::Reader, options.queues);
        let (queue, orders) = channel();
        let socket = UnixListener::from(OwnedFd::from(listener.take_socket()));
        let host = Host::new(socket, Orders { queue, waker });
        let serving = host.clone();
        let thread = std::thread::Builder::new().name("vhost-user".to_owned());
        let conversations = thread.spawn(move || serving.serve()).map_err(LoopError::Ring)?;
        Ok(Backend {
            device,
            orders,
            host,
            conversations: Some(conversations),
            listener,
            stopper,
            events: Vec::new(),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        match self.listener.place() {
            Listen::Unix(path) => path,
            Listen::Tcp(_) => unreachable!("it was bound to a path"),
        }
    }

    /// Something that ends it from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves until it is stopped. Dropping the back-end afterwards detaches the volume.
    ///
    /// # Errors
    /// The volume is attached no more, or the reactor failed.
    pub fn run(&mut self) -> Result<(), BackendError> {
        while !self.stopper.is_wanted() {
            self.turn(None)?;
        }
        self.device.close();
        let until = ::ring::now() + FAREWELL_LIMIT;
        while !self.device.is_idle() && ::ring::now() < until {
            self.turn(Some(Duration::from_millis(100)))?;
        }
        Ok(())
    }

    fn turn(&mut self, timeout: Option<Duration>) -> Result<(), LoopError> {
        while let Ok(order) = self.orders.try_recv() {
            order(&mut self.device);
        }
        let has_more = self.device.work();
        if let Some(reason) = self.device.lost() {
            return Err(LoopError::Lost { reason: reason.clone() });
        }
        let timeout = match (has_more, self.device.is_awaited()) {
            (true, _) => Some(Duration::ZERO),
            (false, true) => Some(timeout.unwrap_or(TICK)),
            (false, false) => timeout,
        };
        let turned = self.device.volume.turn(timeout, &mut self.events);
        for event in self.events.drain(..) {
            self.device.handle(&event);
        }
        self.device.settle();
        turned
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.host.shut_down();
        // Who waits for the device hears that it is gone.
        drop(std::mem::replace(&mut self.orders, channel().1));
        self.device.part();
        if let Some(conversations) = self.conversations.take() {
            let _ = conversations.join();
        }
    }
}

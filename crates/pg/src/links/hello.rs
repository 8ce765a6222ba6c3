//! Greetings: who is at the other end of a link, and whether it is let in.

use super::access::Credential;
use super::{LinkError, Links, OsdLink, Peer};
use base::map::ClusterMap;
use base::{ClusterId, Instant, LinkId, Network, OsdId};
use wire::{Hello, Role};

/// Who was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    Client,
    Osd {
        osd: OsdId,
        /// Its older link was closed.
        is_anew: bool,
    },
}

/// Who is greeted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host<'a> {
    pub(crate) id: OsdId,
    pub(crate) cluster: ClusterId,
    pub(crate) map: &'a ClusterMap,
    /// It serves nothing more: its drive failed, or it is being shut down.
    pub(crate) is_leaving: bool,
    pub(crate) now: Instant,
}

impl Links {
    /// Somebody says who it is, with the credential that its key proved. Whoever had that place before is let go.
    pub(crate) fn greet(
        &mut self,
        host: &Host<'_>,
        link: LinkId,
        hello: &Hello,
        credential: Option<Credential>,
        network: &mut impl Network,
    ) -> Result<Admitted, LinkError> {
        if hello.cluster != host.cluster {
            return Err(LinkError::OtherCluster { ours: host.cluster, theirs: hello.cluster });
        }
        if hello.target != host.id {
            return Err(LinkError::OtherOsd { ours: host.id, theirs: hello.target });
        }
        match hello.role {
            Role::Client(client) => {
                // A client has one connection to an OSD. What an older one still holds must not run after
                // anything of the newer: its requests may have been sent again and been overwritten since.
                let (admitted, older) = self.admit_client(client, credential)?;
                for older in older {
                    self.forget(older);
                    network.close(older, "the client connected anew");
                }
                self.insert(link, Peer::Client(admitted));
                Ok(Admitted::Client)
            }
            Role::Osd(osd) => {
                Links::admit_osd(host.id, osd, credential.as_ref(), host.map)?;
                if host.is_leaving {
                    return Err(LinkError::Stopped(host.id));
                }
                let peer = OsdLink { credential, ..OsdLink::new(osd, Some(hello.version()), host.now) };
                let older = self.insert_osd(link, peer);
                if let Some(older) = older {
                    network.close(older, "the OSD connected anew");
                }
                Ok(Admitted::Osd { osd, is_anew: older.is_some() })
            }
        }
    }
}

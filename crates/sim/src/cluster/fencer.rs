//! How a client's process makes sure that nobody is served any more who had its volumes before: what a front door does
//! with ordinary sockets, done over the simulated network.

use super::client::ClientIo;
use super::world::{Input, MILLISECOND, Process, SECOND, World};
use base::map::ClusterMap;
use base::{ClientId, LinkId, Network, OsdId};
use client::Fencing;
use cluster::Attachment;
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::{Fence, Hello, Kind, Message, Role, VERSIONS};

/// How long it may take in all.
const LIMIT: u64 = 30 * SECOND;
/// How long an OSD may take to greet, and then to answer. Then it is asked anew.
const GREETING_LIMIT: u64 = 3 * SECOND;
const ANSWER_LIMIT: u64 = 20 * SECOND;
/// The pause before an OSD is asked anew.
const RETRY_PAUSE: u64 = 500 * MILLISECOND;

/// How far an OSD has got.
#[derive(Debug)]
enum Asked {
    Dialled {
        link: LinkId,
        until: u64,
    },
    Told {
        link: LinkId,
        until: u64,
    },
    /// It was asked in vain.
    Again {
        at: u64,
    },
    Answered,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    UnderWay,
    /// All fences stand.
    Done,
    /// It took too long.
    Failed,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Fencer {
    client: ClientId,
    pub(super) volumes: Vec<Attachment>,
    map: Arc<ClusterMap>,
    began: u64,
    /// The volume that is being fenced, by its place among `volumes`; how far that is, and what each OSD said.
    at: usize,
    fencing: Option<Fencing>,
    asked: BTreeMap<OsdId, Asked>,
}

impl Fencer {
    pub(super) fn new(client: ClientId, volumes: Vec<Attachment>, map: Arc<ClusterMap>, now: u64) -> Fencer {
        Fencer { client, volumes, map, began: now, at: 0, fencing: None, asked: BTreeMap::new() }
    }

    /// The newest map that it was given.
    pub(super) fn map(&self) -> Arc<ClusterMap> {
        self.map.clone()
    }

    /// One turn.
    pub(super) fn turn(&mut self, process: Process, world: &mut World) -> Progress {
        world.mailboxes[process.0].released.clear();
        for input in std::mem::take(&mut world.mailboxes[process.0].inputs) {
            match input {
                Input::Connected(link) => self.connected(link, &mut ClientIo { process, world }),
                Input::Received(link) => self.received(process, link, world),
                Input::Closed(link, _) => self.ended(link, world.now),
                Input::Map(map) if map.revision > self.map.revision => self.map = map,
                _ => {}
            }
        }
        if world.now - self.began > LIMIT {
            return Progress::Failed;
        }
        while let Some(attached) = self.volumes.get(self.at) {
            let volume = attached.id;
            let needs_one = !attached.unfenced.is_empty();
            if self.fencing.is_none() && needs_one {
                self.fencing = Fencing::new(&self.map, volume);
            }
            let open = self.fencing.as_ref().map(|fencing| fencing.open(&self.map)).unwrap_or_default();
            if !open.is_empty() {
                for osd in open {
                    self.ask(process, osd, world);
                }
                let later = world.now + RETRY_PAUSE / 5;
                world.wake(process, later);
                return Progress::UnderWay;
            }
            for link in std::mem::take(&mut self.asked).into_values().filter_map(|asked| asked.link()) {
                world.close(link, "no longer needed");
            }
            self.fencing = None;
            self.at += 1;
        }
        Progress::Done
    }

    /// Goes on with an OSD, whatever it was asked so far.
    fn ask(&mut self, process: Process, osd: OsdId, world: &mut World) {
        match self.asked.get(&osd) {
            Some(Asked::Dialled { link, until } | Asked::Told { link, until }) if *until <= world.now => {
                let link = *link;
                world.close(link, "it does not answer");
                self.asked.insert(osd, Asked::Again { at: world.now + RETRY_PAUSE });
            }
            Some(Asked::Dialled { .. } | Asked::Told { .. } | Asked::Answered) => {}
            Some(Asked::Again { at }) if *at > world.now => {}
            Some(Asked::Again { .. }) | None => {
                let Some(address) = self.map.osds.get(&osd).and_then(|info| info.address) else { return };
                let asked = match (ClientIo { process, world }).connect(address) {
                    Some(link) => Asked::Dialled { link, until: world.now + GREETING_LIMIT },
                    None => Asked::Again { at: world.now + RETRY_PAUSE },
                };
                self.asked.insert(osd, asked);
            }
        }
    }

    fn osd_of(&self, wanted: LinkId) -> Option<OsdId> {
        self.asked.iter().find(|(_, asked)| asked.link() == Some(wanted)).map(|(osd, _)| *osd)
    }

    fn connected(&mut self, link: LinkId, io: &mut impl Network) {
        if let Some(osd) = self.osd_of(link) {
            let (role, cluster) = (Role::Client(self.client), self.map.cluster);
            io.send(link, &Hello { role, cluster, target: osd, versions: VERSIONS }.encode());
        }
    }

    fn ended(&mut self, link: LinkId, now: u64) {
        if let Some(osd) = self.osd_of(link) {
            self.asked.insert(osd, Asked::Again { at: now + RETRY_PAUSE });
        }
    }

    fn received(&mut self, process: Process, link: LinkId, world: &mut World) {
        world.reap(link);
        let Some(mut inbox) = world.take_inbox(link) else { return };
        let (Some(osd), Some(attached)) = (self.osd_of(link), self.volumes.get(self.at)) else {
            return world.close(link, "of no use");
        };
        let fence = Fence { request: 1, volume: attached.id, generation: attached.generation };
        loop {
            let (message, size) = match wire::parse(&inbox) {
                Ok(Some(whole)) => whole,
                Ok(None) => break,
                Err(_) => {
                    self.ended(link, world.now);
                    return world.close(link, "of no use");
                }
            };
            match message {
                Message::Welcome(_) => {
                    let until = world.now + ANSWER_LIMIT;
                    self.asked.insert(osd, Asked::Told { link, until });
                    ClientIo { process, world }.send(link, &fence.encode(Kind::Fence));
                }
                Message::FenceDone(done) if done == fence => {
                    self.asked.insert(osd, Asked::Answered);
                    if let Some(fencing) = &mut self.fencing {
                        fencing.vouches(osd);
                    }
                    return world.close(link, "no longer needed");
                }
                _ => {
                    self.ended(link, world.now);
                    return world.close(link, "of no use");
                }
            }
            inbox.drain(..size);
        }
        world.return_inbox(link, inbox, false);
    }
}

impl Asked {
    fn link(&self) -> Option<LinkId> {
        match self {
            Asked::Dialled { link, .. } | Asked::Told { link, .. } => Some(*link),
            Asked::Again { .. } | Asked::Answered => None,
        }
    }
}

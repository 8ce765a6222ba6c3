//! The control side of volumes that are opened: watched while they are, owned when there is something to change, and given up when
//! another wishes that. What is asked of the registry, and in which order it is waited for what, is here; when that is wanted the
//! client decides ([`client::Client::poll_ownership`]).

use super::session::{
    AttachError, FIRST_MAP_LIMIT, Hold, KEEP_ALIVE_EVERY, SessionEvent, fence_those_before,
};
use auth::Identity;
use base::map::{ClusterMap, WishId};
use base::{Generation, VolumeId};
use cluster::{Attachment, ClusterError, GiveUp, Own, Owning, WishNoMore};
use registry::RegistryError;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// How often it is asked again for a volume whose owner has not given it up: its lease may have ended.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The shortest pause between two such questions.
const ASK_PAUSE: Duration = Duration::from_millis(10);
/// Steps of one volume that wait to be taken: there is one at a time, and another only when it was told of.
const STEPS_MAX: usize = 4;

/// What a volume's client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// To own it.
    Own {
        /// Whoever wishes it is told that it is not to be had.
        keeps: bool,
    },
    /// To own it no more: nothing is under way.
    GiveUp,
}

/// Sees to the volumes that a session opened. Each has a task of its own: who waits for one holds up no other.
pub(super) async fn see_to(
    hold: Rc<Hold>,
    mut steps: mpsc::Receiver<(VolumeId, Step)>,
    maps: watch::Receiver<Arc<ClusterMap>>,
    identity: Identity,
    told: mpsc::Sender<SessionEvent>,
) {
    let mut volumes: BTreeMap<VolumeId, mpsc::Sender<Step>> = BTreeMap::new();
    // Dropped, it ends them.
    let mut tasks = JoinSet::new();
    while let Some((volume, step)) = steps.recv().await {
        let its = volumes.entry(volume).or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(STEPS_MAX);
            let (hold, maps) = (hold.clone(), maps.clone());
            let wish = WishId(uuid::Uuid::new_v4().as_u64_pair().0);
            let (identity, told) = (identity.clone(), told.clone());
            let owner = Owner { hold, volume, wish, maps, identity, told };
            tasks.spawn_local(owner.run(receiver));
            sender
        });
        if its.send(step).await.is_err() {
            tracing::error!(%volume, "nobody sees to the volume any more");
        }
    }
}

/// One volume.
struct Owner {
    hold: Rc<Hold>,
    volume: VolumeId,
    /// What it asks for it by, each time.
    wish: WishId,
    maps: watch::Receiver<Arc<ClusterMap>>,
    identity: Identity,
    told: mpsc::Sender<SessionEvent>,
}

impl Owner {
    async fn run(mut self, mut steps: mpsc::Receiver<Step>) {
        while let Some(step) = steps.recv().await {
            let volume = self.volume;
            let event = match step {
                Step::Own { keeps } => match self.own(keeps).await {
                    Ok(generation) => SessionEvent::Owned { volume, generation },
                    Err(reason) => SessionEvent::NotOwned { volume, reason },
                },
                Step::GiveUp => {
                    self.give_up().await;
                    SessionEvent::GaveUp { volume }
                }
            };
            if self.told.send(event).await.is_err() {
                return;
            }
        }
    }

    /// Asks until the volume is this client's, and sees to it that nobody else is served of changes. Answers its generation.
    async fn own(&mut self, keeps: bool) -> Result<Generation, String> {
        self.hold.asks_for(self.volume);
        let owned = match self.ask_until_owned(keeps).await {
            Ok(attached) => self.make_sure(attached).await,
            Err(reason) => {
                self.wish_no_more().await;
                Err(reason)
            }
        };
        self.hold.asks_no_more(self.volume);
        owned
    }

    async fn ask_until_owned(&mut self, keeps: bool) -> Result<Attachment, String> {
        let (volume, wish, mut known) = (self.volume, self.wish, None);
        loop {
            let map = self.maps.borrow_and_update().clone();
            let info = map.volumes.get(&volume).filter(|info| info.is_listed());
            let Some(info) = info else { return Err("it was removed".to_owned()) };
            let generation = info.generation;
            let (client, lease, description) =
                (self.hold.client, self.hold.lease.get(), self.hold.description.clone());
            let own = Own { volume, client, lease, description, wish, generation, keeps };
            match self.hold.desk.ask(own).await {
                // Under a lease that ended meanwhile it would be nobody's soon.
                Ok(Owning::Owned(_)) if self.hold.lease.get() != lease => {}
                Ok(Owning::Owned(attached)) => return Ok(*attached),
                Ok(Owning::Kept { holder }) => {
                    return Err(format!(
                        "{holder} has it attached, and does not give it up; detach it there, or serve it there with --open too"
                    ));
                }
                Ok(Owning::Awaited { holder }) => {
                    if known.as_ref() != Some(&holder) {
                        // If nobody listens any more, nobody waits for the volume either.
                        let _ = self
                            .told
                            .send(SessionEvent::AwaitsOwner { volume, holder: holder.clone() })
                            .await;
                        known = Some(holder);
                    }
                    let was_granted = is_granted(&map, volume, wish);
                    let is_news = |map: &Arc<ClusterMap>| {
                        let now = map.volumes.get(&volume).map(|info| info.generation);
                        now != Some(generation) || is_granted(map, volume, wish) && !was_granted
                    };
                    // What ends otherwise is asked about again too.
                    let _ = tokio::time::timeout(ASK_EVERY, self.maps.wait_for(is_news)).await;
                    tokio::time::sleep(ASK_PAUSE).await;
                }
                Err(error) if is_passing(&error) => {
                    tracing::warn!(%error, %volume, "the volume is not owned yet; trying again");
                    tokio::time::sleep(KEEP_ALIVE_EVERY).await;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Others are not to wait for who asks no more: said until it is heard, unless that is no use.
    async fn wish_no_more(&self) {
        let (volume, wish) = (self.volume, self.wish);
        while let Err(error) =
            self.hold.desk.ask(WishNoMore { volume, wish, lease: self.hold.lease.get() }).await
        {
            tracing::warn!(%error, %volume, "the registry was not told that the volume is wished no more");
            if !is_passing(&error) {
                return;
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// What was attached is used when the map shows it, and when nobody else is served who had it before.
    async fn make_sure(&mut self, attached: Attachment) -> Result<Generation, String> {
        let (volume, generation) = (self.volume, attached.generation);
        self.hold.note_owned(volume, generation);
        let shows_it = |map: &Arc<ClusterMap>| {
            map.volumes.get(&volume).is_some_and(|info| info.generation >= generation)
        };
        let shown = tokio::time::timeout(FIRST_MAP_LIMIT, self.maps.wait_for(shows_it)).await;
        let is_shown = shown.is_ok_and(|shown| shown.is_ok());
        let made_sure = match is_shown {
            true => {
                let (desk, client) = (&self.hold.desk, self.hold.client);
                fence_those_before(desk, &self.maps, client, &attached, &self.identity).await
            }
            false => Err(AttachError::NoMap { volume: attached.info.name.clone() }),
        };
        if let Err(error) = made_sure {
            // It was not used. Those before it are still to be fenced, by whoever comes next.
            self.give_up().await;
            return Err(error.to_string());
        }
        Ok(generation)
    }

    /// Gives up what this client has, if it has it: said until it is heard. Nothing is under way; so whether it has it still is of no
    /// account from now on, and what came of saying so is not known each time.
    async fn give_up(&mut self) {
        let (volume, client) = (self.volume, self.hold.client);
        let Some(generation) = self.hold.generation_of(volume) else { return };
        self.hold.forget(volume);
        self.hold.asks_for(volume);
        while let Err(error) = self.hold.desk.ask(GiveUp { volume, client, generation }).await {
            tracing::warn!(%error, %volume, "the registry was not told that the volume is given up; trying again");
            tokio::time::sleep(ASK_EVERY).await;
        }
        self.hold.asks_no_more(volume);
    }
}

fn is_granted(map: &ClusterMap, volume: VolumeId, wish: WishId) -> bool {
    map.wishes.get(&volume).and_then(|its| its.get(&wish)).is_some_and(|wish| wish.is_granted)
}

/// Whether it may be otherwise a moment later.
fn is_passing(error: &ClusterError) -> bool {
    matches!(
        error,
        ClusterError::Contended { .. }
            | ClusterError::Registry(
                RegistryError::Unreachable { .. }
                    | RegistryError::Closed
                    | RegistryError::OutcomeUnknown { .. }
                    // It is taken up again under another one.
                    | RegistryError::LeaseNotFound { .. }
            )
    )
}

#[cfg(test)]
mod tests;

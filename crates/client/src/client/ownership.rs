//! Volumes that are opened and not attached.
//!
//! What is opened is read at once, and nobody is disturbed by that. A change of it is put off until the volume is *owned*: whoever
//! drives the client is told to ask for that ([`Client::poll_ownership`]), and says what comes of it. When the map shows that another
//! wishes to own it, the owner begins no more changes, though not before it has had it for [`OWNED_MIN`]. When all that it began
//! have ended, with none that may take effect later, it is given up, and nobody needs to fence what is not there. What was put off
//! meanwhile waits until the volume is owned again. Reads go on all the time.
//!
//! Who wants to own a volume does so whether there is something to change or not ([`Client::own`]); who *holds* it gives it to nobody,
//! until it lets go of it.
//!
//! How much is put off is bounded by what bounds operations: whoever submits them. Their time limit counts from when they were
//! submitted.

use super::volumes::Volume;
use super::waiting::BLOCKED_AFTER;
use super::{Client, Completion, Holding, Notice, Operation, Outcome, VolumeHandle};
use crate::error::ClientError;
use base::{Generation, Instant, Network, VolumeId};
use std::time::Duration;

/// So long an owner has a volume before it begins to give it up: several who write by turns spend most of the time on writing.
const OWNED_MIN: Duration = Duration::from_millis(100);
/// The pause before it is tried again to fence what may still take effect of an owner that is to give its volume up.
const RENEWAL_PAUSE: Duration = Duration::from_secs(5);

/// How a client stands to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It attached it, and keeps it.
    Kept,
    /// It opened it to read it.
    Reading,
    /// It opened it, and has nothing to change.
    Open,
    /// It asked to own it.
    Asked,
    /// It owns it.
    Owned { since: Instant },
    /// It owns it, begins no more changes, and gives it up when those that it began have ended.
    Ending { renew_at: Instant },
    /// It is giving it up.
    GivingUp,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Ownership {
    stage: Stage,
    /// Somebody wishes to own it, as the newest map shows.
    pub(super) is_wished: bool,
    /// Who has it, where that is known.
    holder: Option<String>,
    /// It is to be owned, whether there is something to change or not.
    is_wanted: bool,
    /// Once it is owned, it is kept.
    is_held: bool,
    /// As it was asked for last, it is kept.
    is_kept: bool,
    /// It is to be given up, though nobody wishes for it: it is kept and not to be held, or the other way round.
    is_let_go: bool,
    /// Why it is not held that was to be.
    refusal: Option<String>,
    /// Since when changes wait for it, if a person was told that.
    pub(super) told: Option<Instant>,
}

/// What is to be done so that a volume changes hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnershipStep {
    /// Ask to own it, and say [`Client::owned`] or [`Client::not_owned`].
    Ask {
        /// It is given to nobody who wishes it.
        keeps: bool,
    },
    /// Attach it anew, and have the older generation fenced, as [`Client::begin_renewal`] says: something may still take effect.
    Renew,
    /// Give it up: nothing is under way. Then say [`Client::gave_up`].
    GiveUp,
}

impl Ownership {
    /// Of a volume that was attached.
    pub(super) fn kept() -> Ownership {
        Ownership {
            stage: Stage::Kept,
            is_wished: false,
            holder: None,
            is_wanted: false,
            is_held: false,
            is_kept: false,
            is_let_go: false,
            refusal: None,
            told: None,
        }
    }

    /// Of one that was opened.
    fn opened(is_read_only: bool) -> Ownership {
        let stage = if is_read_only { Stage::Reading } else { Stage::Open };
        Ownership { stage, ..Ownership::kept() }
    }

    /// Whether the volume was opened, and not attached.
    pub(super) fn is_opened(&self) -> bool {
        self.stage != Stage::Kept
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.stage == Stage::Reading
    }

    /// Whether the volume is attached to this client.
    pub(super) fn is_owner(&self) -> bool {
        matches!(self.stage, Stage::Kept | Stage::Owned { .. } | Stage::Ending { .. })
    }

    /// Whether changes begin.
    pub(super) fn lets_begin(&self) -> bool {
        matches!(self.stage, Stage::Kept | Stage::Owned { .. })
    }

    /// An owner that is to hold the volume, and has it by an attachment that yields, gives it up; or the other way round.
    fn settle(&mut self) {
        let is_owned = matches!(self.stage, Stage::Owned { .. } | Stage::Ending { .. });
        self.is_let_go = is_owned && self.is_held != self.is_kept;
    }

    /// When it begins to give the volume up.
    fn ends_at(&self) -> Option<Instant> {
        match self.stage {
            Stage::Owned { since } if self.is_let_go => Some(since),
            Stage::Owned { since } if self.is_wished && !self.is_held => Some(since + OWNED_MIN),
            _ => None,
        }
    }

    pub(super) fn why(&self) -> String {
        match (self.stage, &self.holder) {
            (Stage::Ending { .. } | Stage::GivingUp, _) => {
                "another wishes to change the volume, and it is being given up for a while".to_owned()
            }
            (_, Some(holder)) => format!("the volume was asked of {holder}, which has not given it up yet"),
            _ => "the volume was asked for, and is not owned yet".to_owned(),
        }
    }
}

impl Client {
    /// Adds a volume that was opened: it is read under whatever generation the map shows, and changed when it is owned; or never, if it
    /// is opened to be read only.
    ///
    /// # Panics
    /// If the map does not know the volume or its pool.
    pub fn add_opened(&mut self, id: VolumeId, is_read_only: bool) -> VolumeHandle {
        // When it is owned, nobody else has it.
        let handle = self.add_volume(id, Generation(0), Holding::Alone);
        let volume = &mut self.volumes[handle.0 as usize];
        volume.ownership = Ownership::opened(is_read_only);
        volume.heed(&self.map);
        handle
    }

    /// Whether a volume is attached to this client now.
    #[must_use]
    pub fn is_owner(&self, volume: VolumeHandle) -> bool {
        self.volumes[volume.0 as usize].ownership.is_owner()
    }

    /// Whether a change of a volume that is submitted now begins now.
    #[must_use]
    pub fn begins_changes(&self, volume: VolumeHandle) -> bool {
        self.volumes[volume.0 as usize].lets_begin()
    }

    /// Has a volume that was opened be owned, though there is nothing to change: [`Self::is_had`] says whether it is. Who `keeps` it
    /// *holds* it, whoever wishes for it.
    pub fn own(&mut self, volume: VolumeHandle, keeps: bool) {
        let ownership = &mut self.volumes[volume.0 as usize].ownership;
        (ownership.is_wanted, ownership.refusal) = (true, None);
        ownership.is_held |= keeps;
        ownership.settle();
    }

    /// Whether a volume that was to be owned is, as it was to be; `Err`: it is not to be had, which is said once.
    ///
    /// # Errors
    /// Why.
    pub fn is_had(&mut self, volume: VolumeHandle) -> Result<bool, String> {
        let ownership = &mut self.volumes[volume.0 as usize].ownership;
        match ownership.refusal.take() {
            Some(reason) => Err(reason),
            None => {
                let is_owned = matches!(ownership.stage, Stage::Kept | Stage::Owned { .. });
                let is_had = is_owned && !ownership.is_let_go;
                // Had once, it is asked for again only by who holds it.
                ownership.is_wanted &= !is_had || ownership.is_held;
                Ok(is_had)
            }
        }
    }

    /// Whether this client has nothing of a volume that was opened, and the registry knows that.
    #[must_use]
    pub fn is_given_up(&self, volume: VolumeHandle) -> bool {
        let stage = self.volumes[volume.0 as usize].ownership.stage;
        matches!(stage, Stage::Open | Stage::Asked | Stage::Reading)
    }

    /// Gives up a volume that was opened, when what was begun has ended: [`Self::is_given_up`] says whether it is.
    pub fn let_go(&mut self, volume: VolumeHandle) {
        let ownership = &mut self.volumes[volume.0 as usize].ownership;
        (ownership.is_wanted, ownership.is_held) = (false, false);
        ownership.is_let_go = matches!(ownership.stage, Stage::Owned { .. } | Stage::Ending { .. });
    }

    /// What is to be done next of a volume that was opened, each once.
    pub fn poll_ownership(&mut self, now: Instant) -> Option<(VolumeHandle, OwnershipStep)> {
        (0..self.volumes.len()).find_map(|at| {
            let step = self.next_step(now, at)?;
            self.volumes[at].ownership.stage = match step {
                OwnershipStep::Ask { keeps } => {
                    self.volumes[at].ownership.is_kept = keeps;
                    Stage::Asked
                }
                OwnershipStep::Renew => Stage::Ending { renew_at: now + RENEWAL_PAUSE },
                OwnershipStep::GiveUp => Stage::GivingUp,
            };
            Some((VolumeHandle(at as u32), step))
        })
    }

    fn next_step(&self, now: Instant, at: usize) -> Option<OwnershipStep> {
        let volume = &self.volumes[at];
        match volume.ownership.stage {
            Stage::Open if volume.still.put_off_count() > 0 || volume.ownership.is_wanted => {
                Some(OwnershipStep::Ask { keeps: volume.ownership.is_held })
            }
            Stage::Ending { renew_at } => {
                if volume.is_renewing || self.has_changes_of(at) {
                    return None;
                }
                match volume.loose_end {
                    None => Some(OwnershipStep::GiveUp),
                    Some(_) if renew_at <= now => Some(OwnershipStep::Renew),
                    Some(_) => None,
                }
            }
            _ => None,
        }
    }

    /// Whether changes of a volume are under way.
    fn has_changes_of(&self, at: usize) -> bool {
        let its = |operation: &Operation| operation.volume.0 as usize == at && operation.is_change;
        self.operations.iter().flatten().any(its)
    }

    /// A volume that was asked for is owned, under that generation: nobody else is served of changes. What was put off begins.
    pub fn owned(
        &mut self,
        now: Instant,
        volume: VolumeHandle,
        generation: Generation,
        io: &mut impl Network,
    ) {
        let of = &mut self.volumes[volume.0 as usize];
        of.generation = generation;
        (of.ownership.stage, of.ownership.holder) = (Stage::Owned { since: now }, None);
        // Who holds it has it again should it be lost.
        of.ownership.is_wanted = of.ownership.is_held;
        of.ownership.settle();
        self.go_on(now, io);
    }

    /// A volume that was asked for is not given: changes that wait for it fail, with that reason.
    pub fn not_owned(&mut self, volume: VolumeHandle, reason: &str) {
        let of = &mut self.volumes[volume.0 as usize];
        (of.ownership.stage, of.ownership.told) = (Stage::Open, None);
        of.ownership.is_held = false;
        if std::mem::take(&mut of.ownership.is_wanted) {
            of.ownership.refusal = Some(reason.to_owned());
        }
        let failure = ClientError::NotOwned { volume: of.name.clone(), reason: reason.to_owned() };
        for change in of.still.take() {
            let outcome = Outcome::Failed(failure.clone());
            self.completions.push_back(Completion {
                token: change.what.token,
                buffer: change.buffer,
                outcome,
            });
        }
    }

    /// Who has a volume that was asked for, if somebody has: people are told when it takes long.
    pub fn waits_for_owner(&mut self, volume: VolumeHandle, holder: Option<String>) {
        self.volumes[volume.0 as usize].ownership.holder = holder;
    }

    /// A volume was given up. Changes that wait ask for it again.
    pub fn gave_up(&mut self, volume: VolumeHandle) {
        let of = &mut self.volumes[volume.0 as usize];
        (of.ownership.stage, of.ownership.is_let_go) = (Stage::Open, false);
        of.heed(&self.map);
    }

    /// Owners that have had their volumes long enough begin to give them up if somebody wishes for them; or go on, if nobody does any
    /// more.
    pub(super) fn heed_wishes(&mut self, now: Instant) {
        for volume in &mut self.volumes {
            let ownership = &mut volume.ownership;
            if ownership.ends_at().is_some_and(|at| at <= now) {
                ownership.stage = Stage::Ending { renew_at: now };
            } else if matches!(ownership.stage, Stage::Ending { .. })
                && !ownership.is_wished
                && !ownership.is_let_go
            {
                ownership.stage = Stage::Owned { since: now };
            }
        }
    }

    /// When an owner is to begin to give its volume up, or to try again to be rid of what keeps it from that.
    pub(super) fn next_ownership(&self) -> Option<Instant> {
        let at = |(at, volume): (usize, &Volume)| match volume.ownership.stage {
            Stage::Ending { renew_at } => {
                let waits = volume.loose_end.is_some() && !volume.is_renewing && !self.has_changes_of(at);
                waits.then_some(renew_at)
            }
            _ => volume.ownership.ends_at(),
        };
        self.volumes.iter().enumerate().filter_map(at).min()
    }

    /// Ends changes that waited for their volumes until their time limit, and tells of those that wait for long.
    pub(super) fn look_at_put_off(&mut self, now: Instant) {
        for at in 0..self.volumes.len() {
            let volume = &mut self.volumes[at];
            if volume.lets_begin() {
                continue;
            }
            let (name, why) = (volume.name.clone(), volume.why_put_off());
            if let Some(limit) = self.timeout {
                let late = volume.still.take_late(now, limit);
                volume.stalls.gave_up(late.len() as u64, &why);
                for change in late {
                    let (volume, why) = (name.clone(), why.clone());
                    let outcome = Outcome::Failed(ClientError::TimedOut { volume, limit, why });
                    let token = change.what.token;
                    self.completions.push_back(Completion { token, buffer: change.buffer, outcome });
                }
            }
            let volume = &mut self.volumes[at];
            let Some(since) = volume.still.oldest() else { continue };
            if volume.ownership.told.is_none() && now.since(since) >= BLOCKED_AFTER {
                volume.ownership.told = Some(since);
                let operations = volume.still.put_off_count() as u64;
                let notice = Notice::Blocked { volume: volume.name.clone(), operations, why };
                self.tell(notice);
            }
        }
    }

    /// Why changes wait to be begun, if some do for want of their volume.
    pub(super) fn why_put_off(&self) -> Option<String> {
        let waits = |volume: &&Volume| !volume.lets_begin() && volume.still.put_off_count() > 0;
        self.volumes.iter().find(waits).map(Volume::why_put_off)
    }
}

#[cfg(test)]
mod tests;

//! `millpond osd replace`: an OSD that cannot be started any more goes on, under its number, on a blank drive: where its own
//! was, or elsewhere. What it shall hold is brought back by the others.
//!
//! It may break off anywhere: run again, it ends the same. In this order:
//! 1. The OSD must be down, and nobody may have its drive or the one that takes its place: no process that runs it is left.
//! 2. Of each group in which it is in sync somebody else who is up must be, too. Else it may have the last good copy, and what
//!    is on it is given up only where a person says so, pool by pool. So it is where the others want a sound copy of a block,
//!    as far as they met that: whoever catches up may have the last one. That is asked when its drive is taken, and they must have
//!    said so: nobody's silence is taken for a no.
//! 3. Its groups must have gone on without it. Those that have too few members left for that wait for it, unless it is out: so
//!    it is taken out then, and comes in again with the last step.
//! 4. The drive is erased.
//! 5. One transaction gives the OSD's number to the blank drive, and has whoever runs it look there
//!    ([`Cluster::replace_osd`]). Its node formats the drive when it finds it.

use crate::Usage;
use crate::commands::last_copy::{self, GivenUp, LastCopies, has_a_part};
use crate::commands::membership::same_file;
use crate::host::configuration::Stored;
use crate::host::directory::Directory;
use crate::host::drive_files;
use crate::host::inquiry::Inquiry;
use crate::host::settings::Settings;
use crate::host::{access, supervisor};
use crate::output;
use anyhow::{Context, bail};
use base::map::{Admission, ClusterMap, OsdInfo, PgConfig};
use base::units::ByteSize;
use base::{Epoch, NodeId, OsdId, OsdUuid, PgId};
use clap::Args;
use cluster::{Cluster, ClusterError, Replacement};
use drive::{Drive, DriveError, OSD_BYTES_MIN, Use};
use health::view::OsdView;
use registry::Txn;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::{Device, OpenError};
use tokio::time::Instant;

/// How long an OSD is waited for that counts as up: longer than the lease of a process that died.
const DOWN_LIMIT: Duration = Duration::from_secs(8);
/// How long its groups may take to go on without it: their primaries may have just started, and wait for it a while.
const GROUPS_LIMIT: Duration = Duration::from_secs(30);
/// How long the OSD may take to come up on the drive.
const UP_LIMIT: Duration = Duration::from_secs(60);
/// A drive that has said nothing for so long when it was looked at does nothing of what it is asked.
const SILENT_AFTER: Duration = Duration::from_secs(10);
/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// After this it is told what is waited for.
const SAY_AFTER: Duration = Duration::from_secs(1);

/// Has an OSD go on on a blank drive.
#[derive(Args, Clone, Debug)]
pub struct ReplaceArguments {
    /// The OSD: its number, or osd.NUMBER
    #[arg(value_name = "ID", value_parser = crate::commands::osd::parse_osd)]
    osd: OsdId,

    /// The drive that takes its place: a block device, or a file that serves as one [default: where its drive was]
    #[arg(long, value_name = "PATH")]
    drive: Option<PathBuf>,

    /// Erase what is on that drive, though it is of another cluster, of an OSD that was removed, or of no OSD at all
    #[arg(long)]
    erase: bool,

    #[command(flatten)]
    given_up: GivenUp,

    /// Print the OSD as JSON
    #[arg(long)]
    json: bool,
}

/// What became of it.
enum Done {
    /// The OSD is up on the drive.
    Replaced(Box<OsdView>),
    /// It is up on it anyway.
    Nothing(Box<OsdView>),
    /// It comes up when its node runs.
    WhenItRuns(&'static str),
}

/// `millpond osd replace`.
pub fn replace(arguments: &ReplaceArguments, path: &Path) -> anyhow::Result<()> {
    let directory = Directory::new(path)?;
    let settings = Settings::load(&directory)?;
    let osd = arguments.osd;
    let done = access::with_cluster_and_inquiry(path, async |cluster, inquiry| {
        let work = Work { cluster, inquiry, arguments, directory: &directory, settings: &settings };
        work.run().await
    })?;
    let of = |osd: &OsdView| (osd.node, osd.path.clone().unwrap_or_else(|| "its drive".to_owned()));
    match done {
        Done::Replaced(view) => output::show(arguments.json, &view, || {
            let (node, drive) = of(&view);
            format!(
                "{osd} is up on {node} with {drive}, which holds nothing yet. What it shall hold is brought back by the other \
                 OSDs.\n`millpond status --watch` shows when all is well, `millpond osd tree` what it holds.\n"
            )
        }),
        Done::Nothing(view) => output::show(arguments.json, &view, || {
            let (node, drive) = of(&view);
            format!("{osd} is up on {node} with {drive}: there is nothing to replace.\n")
        }),
        Done::WhenItRuns(how) => output::print_line(&format!(
            "{osd} goes on with a drive that holds nothing yet, as soon as its node runs: {how}"
        )),
    }
}

/// What became of an attempt to take the drive.
enum Exchanged {
    Done,
    /// Something that this was decided by has changed.
    Changed,
    /// It is not told whether others want what may be on it, for that reason.
    Untold(String),
}

/// Where the OSD is run from.
enum Runner {
    /// `millpond up`, with these nodes.
    Up(BTreeSet<NodeId>),
    /// `millpond node run`.
    Node,
}

struct Work<'a> {
    cluster: &'a Cluster,
    inquiry: &'a Inquiry,
    arguments: &'a ReplaceArguments,
    directory: &'a Directory,
    settings: &'a Settings,
}

/// The drives that are held while the OSD changes from one to the other, so that nobody runs it meanwhile.
struct Held {
    new: Drive,
    _old: Option<Drive>,
}

impl Work<'_> {
    async fn run(&self) -> anyhow::Result<Done> {
        let osd = self.arguments.osd;
        let map = self.cluster.map().await?;
        let info = info_of(&map, osd)?;
        let runner = self.runner(&map, info.node).await?;
        let drives = self.cluster.drives().await?;
        let old = drives.get(&osd).map(PathBuf::from);
        let new = match (&self.arguments.drive, &old) {
            (Some(given), _) => std::path::absolute(given)
                .with_context(|| format!("cannot make sense of the path {given:?}"))?,
            (None, Some(old)) => old.clone(),
            (None, None) => {
                bail!(Usage(format!("where the drive of {osd} was is not known; name one with --drive")))
            }
        };
        if let Some(up) = self.wait_until_down(&new).await? {
            return Ok(Done::Nothing(up));
        }
        self.check_no_other(&runner, &new, &map, &drives)?;
        self.make_missing_file(&new, old.as_deref(), info)?;
        let log = self.log_of(&runner, info.node);
        let log_start = log.metadata().map_or(0, |metadata| metadata.len());
        let registered = self.register(&runner, &new, old.as_deref()).await;
        let uuid = match registered {
            Ok(uuid) => uuid,
            Err(error) => {
                // Where this broke off before, its node may have started it just now.
                let may_be_up = matches!(error.downcast_ref(), Some(DriveError::InUse(_)))
                    || matches!(error.downcast_ref(), Some(ClusterError::OsdUp { .. }));
                let up = if may_be_up { self.wait_until_down(&new).await? } else { None };
                return up.map(Done::Nothing).ok_or(error);
            }
        };
        self.name_in_settings(&runner, &new, old.as_deref(), &drives).await?;
        let runs = match &runner {
            Runner::Up(_) => "millpond up --detach",
            Runner::Node => "millpond node start",
        };
        if self.directory.holder()?.is_none() {
            return Ok(Done::WhenItRuns(runs));
        }
        self.wait_until_up(uuid, &new).await.map(Done::Replaced).with_context(|| {
            let last = supervisor::last_line(&log, log_start);
            let last = last.map(|line| format!("; the last its node said: {line}")).unwrap_or_default();
            format!("{osd} did not come up on {}{last}; all of it is in {}", new.display(), log.display())
        })
    }

    /// Who runs the OSD on this machine.
    async fn runner(&self, map: &ClusterMap, node: NodeId) -> anyhow::Result<Runner> {
        let settings = self.settings;
        let (runner, is_own) = if settings.registry_url().is_some() && !settings.are_of_up() {
            (Runner::Node, settings.node() == Some(node))
        } else {
            let stored = Stored::require(self.cluster.registry().as_ref()).await?;
            let own = stored.configuration.node_ids(self.directory);
            let is_own = own.contains(&node);
            (Runner::Up(own), is_own)
        };
        if is_own {
            return Ok(runner);
        }
        let osd = self.arguments.osd;
        let host = map.host_of(node);
        let on_host = match host == node.to_string() {
            true => "the machine that runs it".to_owned(),
            false => format!("host {host}"),
        };
        bail!(
            "{osd} is on {node}, which is not of this machine: run `millpond osd replace {}` on {on_host}, where the drive is",
            osd.0
        )
    }

    fn log_of(&self, runner: &Runner, node: NodeId) -> PathBuf {
        self.directory.child_log(&match runner {
            Runner::Up(_) => node.to_string(),
            Runner::Node => "node".to_owned(),
        })
    }

    /// Waits until the OSD counts as down. Answers how it is if it is up, and on that drive, and well.
    async fn wait_until_down(&self, new: &Path) -> anyhow::Result<Option<Box<OsdView>>> {
        let osd = self.arguments.osd;
        let began = Instant::now();
        let mut is_told = false;
        loop {
            let map = self.cluster.map().await?;
            if info_of(&map, osd)?.address.is_none() {
                return Ok(None);
            }
            if began.elapsed() > DOWN_LIMIT {
                bail!(
                    "{osd} still counts as up after {} s, so something runs it; `millpond osd tree` shows its process",
                    DOWN_LIMIT.as_secs()
                );
            }
            let told = self.inquiry.osds().await?.into_iter().find(|view| view.osd == osd);
            // One that died counts as up until its lease has run out.
            let lives = |pid: u32| Path::new(&format!("/proc/{pid}")).exists();
            let runs = |view: &OsdView| view.up && view.is_reported() && view.pid.is_some_and(lives);
            let is_well =
                |view: &OsdView| runs(view) && view.failure.is_none() && view.drive_hangs != Some(true);
            let is_out = info_of(&map, osd)?.admission == Admission::Out;
            let hangs = |view: &OsdView| runs(view) && view.drive_hangs == Some(true);
            if is_out && told.as_ref().is_some_and(hangs) {
                bail!(
                    "{osd} was taken out, so it counts as up although its drive hangs; `millpond osd in {}` lets it count as \
                     down within seconds, then run this again",
                    osd.0
                );
            }
            if let Some(view) = told.filter(is_well) {
                let is_there = |path: &String| Path::new(path) == new || same_file(Path::new(path), new);
                if view.path.as_ref().is_some_and(is_there) {
                    return Ok(Some(Box::new(view)));
                }
                bail!(
                    "{osd} is up and works with {}; to have its data on {} instead: `millpond osd add --device {}`, then \
                     `millpond osd out {number}`, and `millpond osd rm {number}` when it is empty",
                    view.path.as_deref().unwrap_or("its drive"),
                    new.display(),
                    new.display(),
                    number = osd.0
                );
            }
            if began.elapsed() > SAY_AFTER && !is_told {
                is_told = true;
                output::notice(&format!("{osd} still counts as up: waiting until its lease has run out"));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Whether a drive is another OSD's, as far as the cluster knows.
    fn check_no_other(
        &self,
        runner: &Runner,
        new: &Path,
        map: &ClusterMap,
        drives: &BTreeMap<OsdId, String>,
    ) -> anyhow::Result<()> {
        let is_same = |path: &Path| path == new || same_file(path, new);
        match self.other_at(runner, map, drives, is_same)? {
            None => Ok(()),
            Some(other) => bail!(
                "{}: is where the drive of {other} is, or was when that was started last; name another with --drive",
                new.display()
            ),
        }
    }

    /// The other OSD of this machine whose drive was at such a path when it was started last.
    fn other_at(
        &self,
        runner: &Runner,
        map: &ClusterMap,
        drives: &BTreeMap<OsdId, String>,
        is_such: impl Fn(&Path) -> bool,
    ) -> anyhow::Result<Option<OsdId>> {
        let osd = self.arguments.osd;
        let node = info_of(map, osd)?.node;
        // Other machines have paths of their own.
        let is_here = |other: &OsdId| {
            map.osds.get(other).is_some_and(|info| match runner {
                Runner::Up(own) => own.contains(&info.node),
                Runner::Node => info.node == node,
            })
        };
        let mut there = drives.iter().filter(|(_, path)| is_such(Path::new(path)));
        Ok(there.find(|(other, _)| **other != osd && is_here(other)).map(|(other, _)| *other))
    }

    /// Whether another OSD of this machine needs the path of the drive, too: the names of drives shift.
    async fn is_shared(&self, runner: &Runner, path: &Path) -> anyhow::Result<bool> {
        let (map, drives) = (self.cluster.map().await?, self.cluster.drives().await?);
        let other = self.other_at(runner, &map, &drives, |noted| noted == path)?;
        Ok(other.is_some() || self.is_anothers(path, info_of(&map, self.arguments.osd)?).await)
    }

    /// Whether the drive that the OSD was on, at that path, does nothing of what it is asked.
    async fn hangs(&self, path: &Path) -> bool {
        let told = self.inquiry.osds().await.unwrap_or_default();
        let is_there = |view: &OsdView| view.path.as_deref().is_some_and(|told| Path::new(told) == path);
        told.iter()
            .any(|view| view.osd == self.arguments.osd && view.drive_hangs == Some(true) && is_there(view))
    }

    /// The same, looked at for a while: a drive may read what is in the kernel's memory still, and whoever runs the OSD may be about
    /// to say that it hangs.
    async fn comes_to_hang(&self, path: &Path) -> bool {
        let began = Instant::now();
        while !self.hangs(path).await {
            if began.elapsed() >= SILENT_AFTER {
                return false;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        true
    }

    /// Whether what is at a path is the drive of another OSD of this cluster, whoever uses it.
    async fn is_anothers(&self, path: &Path, info: &OsdInfo) -> bool {
        self.answers(path).await && self.is_needed(path, info).await
    }

    /// Whether the drive at a path, where the OSD was, does something of what it is asked. Whoever looked at one that does not
    /// would wait for ever.
    async fn answers(&self, path: &Path) -> bool {
        !self.hangs(path).await && says_something(path)
    }

    /// Whether a drive that answers is that of another OSD of this cluster.
    async fn is_needed(&self, path: &Path, info: &OsdInfo) -> bool {
        let Ok(mut drive) = Drive::open(path, Use::ReadOnly) else { return false };
        matches!(self.content_of(&mut drive, info).await, Ok(Content::Needed(_)))
    }

    /// Makes the file anew that served as the drive, if it was one of the cluster's own and is gone.
    fn make_missing_file(&self, new: &Path, old: Option<&Path>, info: &OsdInfo) -> anyhow::Result<()> {
        let is_own = old == Some(new) && new.parent() == Some(self.directory.path());
        if !is_own || new.exists() {
            return Ok(());
        }
        let set_aside = drive_files::can_set_aside(self.directory.path(), info.bytes);
        drive_files::make_file(new, info.bytes, set_aside)
    }

    /// Takes the drive, which must hold nothing that anybody misses, and the one that the OSD was on, if it is still there: so
    /// no process is left that runs it. Another OSD's that is there by now is left to that.
    async fn hold(&self, new: &Path, old: Option<&Path>, info: &OsdInfo) -> anyhow::Result<Held> {
        let osd = self.arguments.osd;
        let is_own_place = old == Some(new);
        if !says_something(new) {
            bail!(
                "{}: does not answer, so nothing can be put there; put another drive in, or name another with --drive",
                new.display()
            );
        }
        let opened = Drive::open(new, Use::Alone);
        let mut drive = opened.with_context(|| match is_own_place {
            true => format!(
                "{osd} cannot go on where its drive was; put one in there, or name another with --drive"
            ),
            false => format!("{osd} cannot go on there"),
        })?;
        let bytes = drive.bytes();
        if bytes < OSD_BYTES_MIN {
            return Err(DriveError::TooSmall(new.to_owned(), ByteSize(bytes)).into());
        }
        let shown = new.display();
        match self.content_of(&mut drive, info).await? {
            Content::Nothing | Content::Own => {}
            // It is as large as its own: what overwrote its own leaves it so.
            Content::Unknown if is_own_place && bytes == info.bytes => {}
            Content::Needed(other) => bail!(
                "{shown}: is the drive of {other}, which the cluster counts on; put it back where it was, or give {other} up \
                 first: `millpond osd out {number}`, `millpond osd rm {number}`",
                number = other.0
            ),
            _ if self.arguments.erase => {}
            Content::Other(what) => {
                bail!("{shown}: holds {what}, and would lose it; name another drive, or say --erase")
            }
            Content::Unknown => bail!(
                "{shown}: is not blank, and what is on it is not known; if nobody misses it, say --erase, else name another \
                 drive"
            ),
        }
        let old = match old.filter(|old| *old != new && !same_file(old, new)) {
            None => None,
            // The process that runs it ends it when another drive has its number.
            Some(old) if !self.answers(old).await => None,
            Some(old) if self.is_needed(old, info).await => None,
            Some(old) => match Drive::open(old, Use::Alone) {
                Ok(old) => Some(old),
                Err(DriveError::InUse(_)) if self.comes_to_hang(old).await => None,
                Err(DriveError::InUse(_)) => bail!(
                    "{}: is in use, so a process still runs {osd} there though it counts as down; end it (`fuser {}` shows \
                     which)",
                    old.display(),
                    old.display()
                ),
                // It is gone, or of no use: nobody runs an OSD on that.
                Err(_) => None,
            },
        };
        Ok(Held { new: drive, _old: old })
    }

    /// What a drive holds.
    async fn content_of(&self, drive: &mut Drive, info: &OsdInfo) -> anyhow::Result<Content> {
        let osd = self.arguments.osd;
        let cluster_id = self.cluster.id().await?;
        let found = match drive.osd() {
            Ok(found) => found,
            Err(DriveError::Superblock(_, OpenError::SuperblocksDamaged) | DriveError::NotBlank(_)) => {
                return Ok(match drive.content()? {
                    Some(content) => Content::Other(content.to_owned()),
                    None => Content::Unknown,
                });
            }
            Err(error @ DriveError::Superblock(..)) => {
                return Ok(Content::Other(format!("an OSD ({error})")));
            }
            Err(error) => return Err(error.into()),
        };
        let Some(found) = found else {
            return Ok(drive
                .content()?
                .map_or(Content::Nothing, |content| Content::Other(content.to_owned())));
        };
        if found.cluster != cluster_id {
            return Ok(Content::Other(format!("{} of cluster {}", found.osd, found.cluster)));
        }
        Ok(match self.cluster.osd_of(found.osd_uuid).await? {
            Some(other) if other != osd => Content::Needed(other),
            // As it was, or as it was before an earlier replacement.
            _ if found.osd_uuid == info.uuid || found.osd == osd => Content::Own,
            _ => Content::Other(format!("{}, which was removed from this cluster", found.osd)),
        })
    }

    /// Gives the OSD's number to the drive as soon as its groups do not count on it any more. Answers as what it is to be
    /// formatted.
    async fn register(&self, runner: &Runner, new: &Path, old: Option<&Path>) -> anyhow::Result<OsdUuid> {
        let osd = self.arguments.osd;
        let uuid = OsdUuid(uuid::Uuid::new_v4());
        // Whatever is wrong with the drives is told before anything is changed.
        drop(self.hold(new, old, info_of(&self.cluster.map().await?, osd)?).await?);
        let began = Instant::now();
        let (mut is_told, mut untold) = (false, None);
        loop {
            let map = self.cluster.map().await?;
            let info = info_of(&map, osd)?;
            if info.uuid == uuid {
                // The answer was lost.
                return Ok(uuid);
            }
            let last = LastCopies::of(&map, osd, &BTreeSet::new());
            self.arguments.given_up.check(osd, &last, &map)?;
            let waiting = waiting(&map, osd, &last);
            if waiting.is_empty() {
                untold = match self.exchange(uuid, runner, new, old, info).await? {
                    Exchanged::Done => return Ok(uuid),
                    Exchanged::Changed => None,
                    Exchanged::Untold(why) => Some(why),
                };
            } else if must_be_out(&map, osd, &waiting) && info.admission == Admission::In {
                output::notice(&format!(
                    "{osd} is out until it goes on: placement groups with fewer members than their pool's min-size wait for it \
                     otherwise"
                ));
                // If this is given up, and the OSD comes back as it was, it is in again.
                self.cluster.set_admission(osd, Admission::OutWhileDown).await?;
            }
            if began.elapsed() > GROUPS_LIMIT {
                match untold {
                    _ if !waiting.is_empty() => bail!(self.still_waiting(&map, &waiting)),
                    Some(why) => bail!(
                        "{osd} is not replaced yet, for it may have the last sound copy of a block that others want, and nobody \
                         tells: {why}. Run this again when `millpond status` says how all OSDs are; or give up what it may have \
                         with --lose-last-copy-of"
                    ),
                    None => bail!("the cluster is being changed by others all the time; try again"),
                }
            }
            if began.elapsed() > SAY_AFTER && !is_told && !waiting.is_empty() {
                is_told = true;
                output::notice(&format!("waiting until {} go on without {osd}", so_many(waiting.len())));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Takes the drive, erases it, and gives it the OSD's number.
    async fn exchange(
        &self,
        uuid: OsdUuid,
        runner: &Runner,
        new: &Path,
        old: Option<&Path>,
        info: &OsdInfo,
    ) -> anyhow::Result<Exchanged> {
        let osd = self.arguments.osd;
        let mut held = self.hold(new, old, info).await?;
        // From here on nobody runs it. Until now it may have come up, and may have become in sync.
        let may_be_wanted = |map: &ClusterMap, pg: &PgId, config: &PgConfig| {
            has_a_part(map, pg, config, osd) && !self.arguments.given_up.has(map, pg.pool)
        };
        let (map, in_want) = match last_copy::in_want(self.cluster, self.inquiry, may_be_wanted).await? {
            Ok(told) => told,
            Err(why) => return Ok(Exchanged::Untold(why)),
        };
        if info_of(&map, osd)?.address.is_some() {
            return Err(ClusterError::OsdUp { osd }.into());
        }
        let last = LastCopies::of(&map, osd, &in_want);
        self.arguments.given_up.check(osd, &last, &map)?;
        if !waiting(&map, osd, &last).is_empty() {
            return Ok(Exchanged::Changed);
        }
        self.leave_to_others(&last).await?;
        held.new.erase().with_context(|| format!("{}: cannot erase it", new.display()))?;
        let replacement = Replacement {
            uuid,
            path: new.display().to_string(),
            bytes: held.new.bytes(),
            class: held.new.class,
        };
        let along = self.along(runner, info.node, new, old).await?;
        match self.cluster.replace_osd(osd, &replacement, &last.alone, along).await {
            Err(ClusterError::OsdInSync { .. }) | Ok(false) => Ok(Exchanged::Changed),
            Ok(true) => Ok(Exchanged::Done),
            Err(error) => Err(error.into()),
        }
    }

    /// Has the groups that are given up here wait for those others alone who are in sync and down: they may come back.
    async fn leave_to_others(&self, last: &LastCopies) -> anyhow::Result<()> {
        let osd = self.arguments.osd;
        for (pg, config) in &last.with_others_down {
            let in_sync: Vec<OsdId> = config.in_sync.iter().copied().filter(|one| *one != osd).collect();
            let learners = config.learners.iter().copied().chain([osd]).collect();
            let (epoch, primary) = (Epoch(config.epoch.0 + 1), in_sync[0]);
            let next = PgConfig { epoch, primary, in_sync, learners, history: config.history };
            // One that has changed meanwhile is looked at again.
            self.cluster.change_pg(*pg, config.epoch, next).await?;
        }
        Ok(())
    }

    /// What changes in the same transaction: where whoever runs the OSD finds its drive.
    async fn along(
        &self,
        runner: &Runner,
        node: NodeId,
        new: &Path,
        old: Option<&Path>,
    ) -> anyhow::Result<Txn> {
        let Runner::Up(_) = runner else { return Ok(Txn::new()) };
        let stored = Stored::require(self.cluster.registry().as_ref()).await?;
        let known = stored.configuration.drives(self.directory);
        match known.iter().find(|drive| drive.path == new) {
            Some(drive) if drive.node == node.0 => return Ok(Txn::new()),
            Some(drive) => {
                bail!("{}: is a drive of node.{}, and {node} needs another", new.display(), drive.node)
            }
            None => {}
        }
        let mut configuration = stored.configuration.clone();
        if let Some(old) = old
            && !self.is_shared(runner, old).await?
        {
            configuration.forget(old, self.directory);
        }
        configuration.add(node.0, new, self.directory)?;
        stored.replaced_by(&configuration)
    }

    /// Names the drive in the settings of a host that joined, instead of the one before. Only now: a blank drive that is named
    /// there and no OSD's becomes another OSD.
    async fn name_in_settings(
        &self,
        runner: &Runner,
        new: &Path,
        old: Option<&Path>,
        drives: &BTreeMap<OsdId, String>,
    ) -> anyhow::Result<()> {
        let Runner::Node = runner else { return Ok(()) };
        let mut settings = Settings::load(self.directory)?;
        let mut devices = settings.devices();
        if devices.iter().any(|device| device == new) {
            return Ok(());
        }
        // Where this broke off just before this, the registry has forgotten the one before: it is no OSD's, and gone.
        let is_left_over =
            |device: &Path| !device.exists() && !drives.values().any(|path| Path::new(path) == device);
        let before = match old {
            Some(old) if old != new && !self.is_shared(runner, old).await? => Some(old),
            _ => None,
        };
        let is_before = |device: &Path| match before {
            Some(before) => device == before,
            None => is_left_over(device),
        };
        match devices.iter_mut().find(|device| is_before(device)) {
            Some(device) => *device = new.to_owned(),
            None => devices.push(new.to_owned()),
        }
        settings.set_devices(&devices);
        settings.store()?;
        if settings.devices() != devices {
            output::warning(&format!(
                "the environment names other drives than node.devices of {}: name {} there too",
                self.directory.settings_file().display(),
                new.display()
            ));
        }
        Ok(())
    }

    /// Why the groups do not go on without the OSD.
    fn still_waiting(&self, map: &ClusterMap, waiting: &[PgId]) -> String {
        let osd = self.arguments.osd;
        let is_missing = |one: &OsdId| {
            map.osds.get(one).is_some_and(|info| info.address.is_none() && info.admission == Admission::In)
        };
        let members = waiting.iter().flat_map(|pg| map.pgs[pg].in_sync.iter().copied());
        let missing: BTreeSet<OsdId> = members.filter(|one| *one != osd && is_missing(one)).collect();
        let because = match missing.len() {
            0 => "`millpond status` says what they wait for".to_owned(),
            count => {
                let names: Vec<String> = missing.iter().map(OsdId::to_string).collect();
                let commands: Vec<String> =
                    missing.iter().map(|one| format!("`millpond osd replace {}`", one.0)).collect();
                let (are, them) = if count == 1 { ("is", "it") } else { ("are", "them") };
                format!(
                    "they wait for {} too, which {are} down: bring {them} back, or replace {them} as well: {}",
                    names.join(" and "),
                    commands.join(", ")
                )
            }
        };
        format!(
            "{osd} is not replaced yet: after {} s {} still count on it, {} among them; {because}. Then run this again",
            GROUPS_LIMIT.as_secs(),
            so_many(waiting.len()),
            waiting.first().map(PgId::to_string).unwrap_or_default()
        )
    }

    /// Waits until the OSD is up as what it was formatted now.
    async fn wait_until_up(&self, uuid: OsdUuid, new: &Path) -> anyhow::Result<Box<OsdView>> {
        let osd = self.arguments.osd;
        let deadline = Instant::now() + UP_LIMIT;
        loop {
            let map = self.cluster.map().await?;
            let info = info_of(&map, osd)?;
            if info.uuid != uuid {
                bail!("it was replaced again meanwhile, by somebody else");
            }
            let is_up = info.address.is_some();
            if is_up || Instant::now() >= deadline {
                let told = self.inquiry.osds().await?.into_iter().find(|view| view.osd == osd);
                match told {
                    Some(mut view) if is_up && view.up => {
                        // It is up before it reports itself to whoever answers this, who knows of the drive before at most.
                        view.path = Some(new.display().to_string());
                        return Ok(Box::new(view));
                    }
                    Some(OsdView { start_refused: Some(reason), .. }) if !is_up => bail!("{reason}"),
                    _ if Instant::now() >= deadline => bail!("it is not up after {} s", UP_LIMIT.as_secs()),
                    _ => {}
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// What is on a drive that is to take the place of an OSD's.
enum Content {
    Nothing,
    /// That very OSD, as it was.
    Own,
    /// Something of which nobody can tell what it was.
    Unknown,
    /// Another OSD of this cluster.
    Needed(OsdId),
    /// In words.
    Other(String),
}

/// Whether a drive answers at all. One that hangs would have whoever looks at it wait for ever: a thread is left behind for it.
fn says_something(path: &Path) -> bool {
    let (answers, answer) = std::sync::mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        let looked = Drive::open(&path, Use::ReadOnly).map(|mut drive| drive.osd().is_ok());
        // Nobody waits any more if it took long.
        let _ = answers.send(looked.is_ok());
    });
    answer.recv_timeout(SILENT_AFTER).is_ok()
}

/// The groups that still count on an OSD, and can go on without it.
fn waiting(map: &ClusterMap, osd: OsdId, last: &LastCopies) -> Vec<PgId> {
    let counting = map.pgs.iter().filter(|(_, config)| config.in_sync.contains(&osd));
    counting.map(|(pg, _)| *pg).filter(|pg| !last.has(pg)).collect()
}

/// Whether some of these groups have too few members left to go on without an OSD that may come back.
fn must_be_out(map: &ClusterMap, osd: OsdId, waiting: &[PgId]) -> bool {
    let is_left =
        |one: &&OsdId| **one != osd && map.osds.get(*one).is_some_and(|info| info.address.is_some());
    waiting.iter().any(|pg| {
        let min_size = map.pools.get(&pg.pool).map_or(0, |pool| pool.min_size as usize);
        map.pgs[pg].in_sync.iter().filter(is_left).count() < min_size
    })
}

fn info_of(map: &ClusterMap, osd: OsdId) -> anyhow::Result<&OsdInfo> {
    Ok(map.osds.get(&osd).ok_or(ClusterError::NoSuchOsd { osd })?)
}

fn so_many(groups: usize) -> String {
    if groups == 1 { "1 placement group".to_owned() } else { format!("{groups} placement groups") }
}

#[cfg(test)]
mod tests;

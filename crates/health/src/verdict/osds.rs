//! OSDs that are down, out, or on their way to being full.

use super::{HOW_TO_MAKE_ROOM, so_many_groups};
use crate::codes::Code;
use crate::problem::Problem;
use crate::view::{OsdView, PgView};
use base::duration::about;
use base::map::Admission;

/// An OSD that is filled to so many percent of what clients can store is told of.
const FILLED_PERCENT: u64 = 85;
/// From here on it is told of as urgent.
const NEARLY_FULL_PERCENT: u64 = 90;

/// An OSD that is down: what becomes of it.
pub(super) fn down(osd: &OsdView, problems: &mut Vec<Problem>) {
    if osd.up {
        return;
    }
    let (name, node, number) = (osd.osd, osd.node, osd.osd.0);
    let is_needed = osd.pgs_in_sync + osd.pgs_target > 0;
    let hangs = does_nothing(osd);
    let read_log = match &osd.failure {
        Some(_) => replace_drive(osd),
        None if osd.start_refused.is_some() => make_anew(osd),
        None if hangs.is_some() => mend_drive(osd),
        None if osd.host == node.to_string() => {
            format!(
                "read {node}.log in the cluster's directory; `up` starts the node again by itself, unless \
                 it was told --no-restart"
            )
        }
        // A host that has joined, or on which the cluster began.
        None => format!(
            "look at host {}: `millpond node start` there runs its node, if nobody does, or `millpond up` where that runs it; \
             its log is in that host's directory",
            osd.host
        ),
    };
    let is_waited_for = osd.admission == Admission::In || is_needed;
    let state = match osd.admission {
        Admission::In => "down",
        _ if is_needed => "down and out",
        _ => "down and out, and nothing waits for it",
    };
    let what = format!("{name} on {node} is {state}");
    let tells_why = osd.failure.is_some() || osd.start_refused.is_some() || hangs.is_some();
    let next = match (osd.admission, osd.out_in_seconds, &osd.stays_in_because) {
        (Admission::In, Some(seconds), _) => {
            format!("{read_log}; it is taken out in {} if it stays away", about(seconds))
        }
        (Admission::In, None, Some(reason)) => {
            format!("{read_log}; it is not taken out by itself: {reason}")
        }
        (Admission::In, None, None) => read_log,
        (Admission::OutWhileDown, ..) if is_needed => format!("{read_log}; it is in again when it is back"),
        (Admission::Out, ..) if is_needed => read_log,
        (Admission::OutWhileDown, ..) => {
            format!("{read_log}; it is in again when it is back. If it is lost: `millpond osd rm {number}`")
        }
        (Admission::Out, ..) if tells_why => {
            format!("{read_log}; or remove it with `millpond osd rm {number}`")
        }
        (Admission::Out, ..) => format!("remove it with `millpond osd rm {number}`"),
    };
    let drive = drive_of(osd);
    let (code, what) = match (&osd.failure, &osd.start_refused) {
        (Some(reason), _) => (Code::OsdDriveFailed, format!("{what}: its drive{drive} failed: {reason}")),
        (None, Some(reason)) => (Code::OsdStartRefused, format!("{what}: it is not started: {reason}")),
        (None, None) => match hangs {
            Some(hangs) => (Code::OsdDriveHangs, format!("{what}: {hangs}")),
            None if is_waited_for => (Code::OsdDown, what),
            None => (Code::OsdRemovable, what),
        },
    };
    let consequence = match osd.pgs_in_sync.max(osd.pgs_target) {
        _ if !is_waited_for => "its placement groups are whole elsewhere".to_owned(),
        0 => "no placement group counts on it".to_owned(),
        1 => "1 placement group has one copy less".to_owned(),
        count => format!("{count} placement groups have one copy less"),
    };
    problems.push(Problem::new(code, what, consequence, next));
}

/// An OSD that is up though its drive does nothing: it is out, or has what nobody else has.
pub(super) fn hangs(osd: &OsdView, problems: &mut Vec<Problem>) {
    let Some(hangs) = does_nothing(osd).filter(|_| osd.up) else { return };
    let what = format!("{} on {}: {hangs}", osd.osd, osd.node);
    let consequence = "the others go on without it; what it alone has waits for the drive";
    problems.push(Problem::new(Code::OsdDriveHangs, what, consequence, mend_drive(osd)));
}

/// That its drive does nothing, if so.
fn does_nothing(osd: &OsdView) -> Option<String> {
    let hangs = osd.drive_hangs == Some(true);
    hangs.then(|| format!("its drive{} does nothing of what it is asked, or does not write", drive_of(osd)))
}

fn drive_of(osd: &OsdView) -> String {
    osd.path.as_deref().map_or(String::new(), |path| format!(" {path}"))
}

/// What to do about an OSD that gave its drive up. Its process runs on, for its other drives.
fn replace_drive(osd: &OsdView) -> String {
    let again = osd.pid.map(|pid| format!("; or have it tried again with `kill {pid}`")).unwrap_or_default();
    format!("put another drive in, and run {}{again}", replace(osd))
}

/// What to do about an OSD whose drive does nothing. When it does again, the OSD is up by itself.
fn mend_drive(osd: &OsdView) -> String {
    format!(
        "look at the kernel's log there (`dmesg`): when the drive does again what it is asked, the OSD goes on by itself; if it \
         does not, put another in, and run {}",
        replace(osd)
    )
}

/// What to do about an OSD that was not started on its drive. Its process tries it again and again.
fn make_anew(osd: &OsdView) -> String {
    format!(
        "run {}: the others bring back what it shall hold; or bring its drive back as it was, and it is started by itself",
        replace(osd)
    )
}

/// The command that puts an OSD on another drive, or on its own anew, and where it is run.
fn replace(osd: &OsdView) -> String {
    let number = osd.osd.0;
    let on_host = match osd.host == osd.node.to_string() {
        true => String::new(),
        false => format!(" on host {}", osd.host),
    };
    format!(
        "`millpond osd replace {number}`{on_host}, with `--drive PATH` if the drive is not where the one before was"
    )
}

/// An OSD that is out and still holds something.
pub(super) fn out(osd: &OsdView, pgs: &[PgView], problems: &mut Vec<Problem>) {
    if osd.admission == Admission::In || osd.pgs_in_sync == 0 {
        return;
    }
    let count = osd.pgs_in_sync;
    let still = if count == 1 { "is still to be" } else { "are still to be" };
    let remove = format!("`millpond osd rm {}` removes it when nothing is left", osd.osd.0);
    let next = match osd.pgs_target {
        0 => format!("wait: `millpond status --watch` shows how far it is; {remove}"),
        _ => format!("nobody is in that could take them: add an OSD with `millpond osd add`; {remove}"),
    };
    let what = format!("{} is out; {} {still} moved off it", osd.osd, so_many_groups(count, pgs.len()));
    let consequence = match osd.up {
        true => "it serves until then, and its drive must stay",
        false => "they count on what it holds until they are rebuilt elsewhere",
    };
    problems.push(Problem::new(Code::OsdDraining, what, consequence, next));
}

/// An OSD that is on its way to being full. Its limits are shares of the space that it can append to
/// (`blocks_max` in `crates/store/src/space.rs`): 88 % for clients' writes, which is what it reports as usable, and 90 %
/// for what it lacks as a learner, which is 102 % of the usable. What the index takes counts too, so that it is full
/// a little before its figures say so.
fn filled(osd: &OsdView) -> Option<Problem> {
    let (used, usable) = (osd.used_bytes?, osd.usable_bytes.filter(|usable| *usable > 0)?);
    let percent = u64::try_from(u128::from(used) * 100 / u128::from(usable)).unwrap_or(u64::MAX);
    let (code, what, next) = match percent {
        ..FILLED_PERCENT => return None,
        FILLED_PERCENT..NEARLY_FULL_PERCENT => {
            (Code::OsdFilling, "filled", "add OSDs or remove data before that")
        }
        _ => (Code::OsdNearlyFull, "nearly full: filled", "add OSDs or remove data now"),
    };
    Some(Problem::new(
        code,
        format!("{} is {what} to {percent} % of what it can store", osd.osd),
        "just below 100 % the placement groups that it has a copy of refuse writes (ENOSPC), and at 102 % it takes no \
         more backfill",
        format!("{next}: {HOW_TO_MAKE_ROOM}"),
    ))
}

/// An OSD that is full, or will be.
pub(super) fn full(osd: &OsdView, problems: &mut Vec<Problem>) {
    if osd.full == Some(true) {
        problems.push(Problem::new(
            Code::OsdFull,
            format!("{} is full and refuses writes", osd.osd),
            "writes to the placement groups that it has a copy of fail (ENOSPC), or, if it is objects that it \
             has no room for, those that begin one; reads, trims and removals work",
            format!("remove or trim data: {HOW_TO_MAKE_ROOM}"),
        ));
    } else {
        problems.extend(filled(osd));
    }
}

//! What becomes of requests by the limits of their volumes and keys ([`crate::limits`]).

use crate::broken::Sabotage;
use crate::context::{Context, Handled};
use crate::io::Io;
use crate::limits::{Admitted, Waiting};
use crate::links::{Links, Peer};
use base::LinkId;
use base::figures::RequestKind;
use wire::{Outcome, RefusalDetails, Request, Status};

/// Has a request wait that comes now, if a limit does not let it begin. None: it begins, and counts.
pub(crate) fn hold_up(
    cx: &mut Context<'_, impl Io>,
    link: LinkId,
    request: &Request,
    kind: RequestKind,
) -> Option<Handled> {
    if cx.breaks(Sabotage::ForgetLimits) {
        return None;
    }
    let volume = request.key.layer.volume();
    let is_still = cx.volumes.map.still.contains_key(&volume);
    match cx.rates.limits.admit(cx.links, link, (request, kind), is_still, cx.now) {
        Admitted::Begins => return None,
        Admitted::Stays => return Some(Handled::Stalled),
        Admitted::Waits => {
            if let Some(state) = cx.volumes.get_mut(volume) {
                state.traffic.throttled += 1;
            }
            if let Some(Peer::Client(client)) = cx.links.get_mut(link) {
                client.traffic.throttled += 1;
            }
        }
    }
    Some(Handled::Done)
}

/// A change may begin, of which nothing was kept: its client is to send it again.
pub(crate) fn ask_for_again(cx: &mut Context<'_, impl Io>, waiting: &Waiting) {
    let knows_limits = knows_limits(cx.links, waiting.link);
    let status = if knows_limits { Status::SendAgain } else { Status::NotActive };
    let details = RefusalDetails { was_not_begun: true, osd: cx.me.id, ..RefusalDetails::default() };
    cx.io.send(waiting.link, &Outcome::refused(waiting.request.request, status, details));
}

/// Asks other OSDs, gives to them, and lets begin what may.
pub(crate) fn advance(cx: &mut Context<'_, impl Io>) {
    let (io, is_heard) = (&mut *cx.io, cx.presence.hears_registry(cx.now));
    cx.rates.limits.advance(cx.me.id, cx.links, is_heard, cx.now, |link, message| io.send(link, message));
}

/// Looks at the slow things.
pub(crate) fn tick(cx: &mut Context<'_, impl Io>) {
    for (link, request) in cx.rates.limits.tick(cx.me.id, &cx.volumes.map, cx.links, cx.now) {
        if knows_limits(cx.links, link) {
            let outcome = Outcome::refused(request, Status::Throttled, RefusalDetails::default());
            cx.io.send(link, &outcome);
        }
    }
}

fn knows_limits(links: &Links, link: LinkId) -> bool {
    matches!(links.get(link), Some(Peer::Client(client)) if client.knows_limits)
}

#[cfg(test)]
mod tests;

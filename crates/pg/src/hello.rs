//! Greetings: who is at the other end of a link, and whether it is let in.

use crate::context::Context;
use crate::epoch;
use crate::fence;
use crate::io::Io;
use crate::links::access::Credential;
use crate::links::{LinkError, Links, OsdLink, Peer};
use base::LinkId;
use wire::{Hello, KNOWS_LIMITS, Role, Welcome};

/// Somebody says who it is, with the credential that its key proved. Whoever had that place before is let go.
pub(crate) fn handle_hello(
    cx: &mut Context<'_, impl Io>,
    link: LinkId,
    hello: &Hello,
    credential: Option<Credential>,
) -> Result<(), LinkError> {
    let me = cx.me;
    if hello.cluster != me.cluster {
        return Err(LinkError::OtherCluster { ours: me.cluster, theirs: hello.cluster });
    }
    if hello.target != me.id {
        return Err(LinkError::OtherOsd { ours: me.id, theirs: hello.target });
    }
    let version = hello.version();
    let welcome = Welcome { version }.encode();
    match hello.role {
        Role::Client(client) => {
            // A client has one connection to an OSD. What an older one still holds must not run after
            // anything of the newer: its requests may have been sent again and been overwritten since.
            let (mut admitted, older) = cx.links.admit_client(link, client, credential)?;
            admitted.knows_limits = version >= KNOWS_LIMITS;
            if let Some(older) = older {
                cx.links.forget(older);
                cx.io.close(older, "the client connected anew");
            }
            cx.links.insert(link, Peer::Client(admitted));
            cx.io.send(link, &welcome);
        }
        Role::Osd(osd) => {
            Links::admit_osd(me.id, osd, credential.as_ref(), &cx.volumes.map)?;
            if cx.is_leaving() {
                return Err(LinkError::Stopped(me.id));
            }
            let peer = OsdLink { credential, ..OsdLink::new(osd, Some(version), cx.now) };
            if let Some(older) = cx.links.insert_osd(link, peer) {
                cx.io.close(older, "the OSD connected anew");
                cx.volumes.forget_told(older);
                epoch::lost_member(cx, osd, &format!("{osd} connected anew"));
            }
            cx.turn.next_tick = cx.now;
            cx.io.send(link, &welcome);
            fence::tell_all(cx, link);
        }
    }
    Ok(())
}

//! What makes members alike again, and what they hold sound: members that were away catch up ([`backfill`]), damage is
//! looked for ([`scrub`]) and repaired ([`mend`]), and a drive that is not what it was gets what a start needs anew
//! ([`renewal`]).

pub(crate) mod backfill;
pub(crate) mod held;
pub(crate) mod mend;
pub(crate) mod renewal;
pub(crate) mod scrub;

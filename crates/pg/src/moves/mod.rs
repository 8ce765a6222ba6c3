//! How a group comes to lie where its target says ([`placement`]), becomes two ([`split`]), and how what nobody needs any
//! more goes ([`delete`]), what lies beyond the ends of volumes ([`cut`]), and what nobody sees of them ([`prune`]);
//! and how clones are given what they see of others ([`flatten`]).

pub(crate) mod cut;
pub(crate) mod delete;
pub(crate) mod flatten;
pub(crate) mod placement;
pub(crate) mod prune;
pub(crate) mod split;

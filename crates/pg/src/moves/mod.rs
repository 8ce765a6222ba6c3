//! How a group comes to lie where its target says ([`placement`]), becomes two ([`split`]), and how what nobody needs any
//! more goes ([`delete`]), what lies beyond the ends of volumes ([`cut`]), and what nobody sees of them ([`prune`]).

pub(crate) mod cut;
pub(crate) mod delete;
pub(crate) mod placement;
pub(crate) mod prune;
pub(crate) mod split;

//! How a group comes to lie where its target says ([`placement`]), becomes two ([`split`]), and how what nobody needs any
//! more goes ([`delete`]), and what lies beyond the ends of volumes ([`cut`]).

pub(crate) mod cut;
pub(crate) mod delete;
pub(crate) mod placement;
pub(crate) mod split;

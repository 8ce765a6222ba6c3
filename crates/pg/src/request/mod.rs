//! What clients ask of a primary.
//!
//! A request first waits in its client's line until there is room for it ([`queue`]). Then it is checked ([`admit`]), and is
//! a [`read`], or a [`write`] or zeroing, which is ordered at once or, where it is not of whole blocks, completed to such
//! ([`edges`]). What limits do not let begin waits ([`limits`]).

pub(crate) mod admit;
pub(crate) mod edges;
pub(crate) mod limits;
pub(crate) mod queue;
pub(crate) mod read;
pub(crate) mod write;

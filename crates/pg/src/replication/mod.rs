//! How a write is ordered, sent to the members, and **acknowledged** ([`order`]); and the other end of that ([`replica`]).

pub(crate) mod order;
pub(crate) mod replica;

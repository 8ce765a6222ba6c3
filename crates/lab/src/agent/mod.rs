//! What makes the load: a process for each client, here or on another host, that is told what to do and tells each second what
//! it measured. Whoever measures watches from outside, and is in nobody's figures.
//!
//! Both sides speak JSON, a value on each line: [`Order`] and [`Wish`]es to the agent, [`Said`] by it. An agent whose order-giver
//! goes away stops, so none is left behind.

mod protocol;
mod serve;
mod session;

pub use protocol::{Access, Done, Order, Ready, Said, Second, Wish, unix_ns};
pub use serve::{serve, wake_on_time};
pub use session::{Agent, AgentError};

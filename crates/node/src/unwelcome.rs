//! Connections that are to be refused as soon as who made them has said something.
//!
//! A handshake ends with the word of whoever was connected to, and what follows is in the clear, if nobody wants it encrypted. A
//! refusal right behind that word would be taken for a part of the handshake, and the reason never be heard. So it waits for the
//! first message. It waits for few: nobody is counted while he waits, and keys that have too many connections can make any number.

/// More than that do not wait.
const WAITING_MAX: usize = 64;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Unwelcome<C> {
    /// And why.
    waiting: Vec<(C, String)>,
}

impl<C> Default for Unwelcome<C> {
    fn default() -> Unwelcome<C> {
        Unwelcome { waiting: Vec::new() }
    }
}

impl<C: Copy + PartialEq> Unwelcome<C> {
    /// Has one wait, with the reason. `false` when too many do.
    pub(crate) fn add(&mut self, connection: C, reason: String) -> bool {
        let has_room = self.waiting.len() < WAITING_MAX;
        if has_room {
            self.waiting.push((connection, reason));
        }
        has_room
    }

    /// Why one is refused that has said something, if it is; or it ended, or is waited for no more.
    pub(crate) fn take(&mut self, connection: C) -> Option<String> {
        let at = self.waiting.iter().position(|(other, _)| *other == connection)?;
        Some(self.waiting.swap_remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_waits_until_it_says_something_and_few_do() {
        let mut unwelcome = Unwelcome::default();
        let add = |unwelcome: &mut Unwelcome<usize>, one: usize| unwelcome.add(one, one.to_string());
        assert!((0..WAITING_MAX).all(|one| add(&mut unwelcome, one)));
        assert!(!add(&mut unwelcome, 100) && unwelcome.take(100).is_none(), "it is one too many");
        for one in [0, 7, WAITING_MAX - 1] {
            assert_eq!(unwelcome.take(one), Some(one.to_string()));
            assert_eq!(unwelcome.take(one), None);
        }
        assert!(add(&mut unwelcome, 100));
    }
}

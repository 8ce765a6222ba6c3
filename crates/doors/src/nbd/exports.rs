//! What is served: named exports, one per volume.

use super::protocol::{STRING_BYTES_MAX, transmission_flag as flag};
use std::cell::Cell;
use std::rc::Rc;

/// One export: a volume under a name.
#[derive(Debug)]
pub struct Export {
    name: String,
    description: String,
    bytes: Cell<u64>,
    read_only: bool,
    /// See [`Exports::set_settling`].
    is_settling: Cell<bool>,
}

impl Export {
    /// An export of `bytes` bytes. The name is what clients ask for, the description what people read.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        bytes: u64,
        read_only: bool,
    ) -> Export {
        let (name, description) = (name.into(), description.into());
        Export { name, description, bytes: Cell::new(bytes), read_only, is_settling: Cell::new(false) }
    }

    /// What clients ask for.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What people read.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Its size in bytes, now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Whether writes to it are refused.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Whether nobody can begin to use it now: see [`Exports::set_settling`].
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.is_settling.get()
    }

    /// What it can do, for a client that did or did not negotiate structured replies, and that may write if anybody may.
    #[must_use]
    pub fn transmission_flags(&self, structured: bool) -> u16 {
        self.flags_for(structured, true)
    }

    /// The same, for a client that may or may not write.
    #[must_use]
    pub(super) fn flags_for(&self, structured: bool, may_write: bool) -> u16 {
        let writing = if self.read_only || !may_write {
            flag::READ_ONLY
        } else {
            flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO
        };
        let unfragmented = if structured { flag::SEND_DF } else { 0 };
        let always =
            flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
        always | writing | unfragmented
    }
}

/// Why exports cannot be served together.
#[derive(thiserror::Error, Debug, PartialEq, Eq)]
pub enum ExportsError {
    /// Two have one name.
    #[error("two exports are named {0:?}; name each volume once")]
    Duplicate(String),
    /// The protocol cannot carry it.
    #[error("export {0:?}: a name or description has at most {STRING_BYTES_MAX} bytes and no NUL")]
    Unspeakable(String),
}

/// Everything that one listener serves. Clones share it; it stays on its thread.
#[derive(Clone, Debug)]
pub struct Exports(Rc<[Export]>);

impl Exports {
    /// These exports, to be known by their place in `exports`.
    ///
    /// # Errors
    /// Two of one name, or a name or description that the protocol cannot carry.
    pub fn new(exports: Vec<Export>) -> Result<Exports, ExportsError> {
        for (index, export) in exports.iter().enumerate() {
            let speakable = |text: &str| text.len() <= STRING_BYTES_MAX && !text.contains('\0');
            if !speakable(&export.name) || !speakable(&export.description) {
                return Err(ExportsError::Unspeakable(export.name.clone()));
            }
            if exports[..index].iter().any(|other| other.name == export.name) {
                return Err(ExportsError::Duplicate(export.name.clone()));
            }
        }
        Ok(Exports(exports.into()))
    }

    /// All of them, in their order.
    #[must_use]
    pub fn all(&self) -> &[Export] {
        &self.0
    }

    /// The export of that name. The empty name is the only export there is, if there is only one.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<usize> {
        let found = self.0.iter().position(|export| export.name.as_bytes() == name);
        found.or_else(|| (name.is_empty() && self.0.len() == 1).then_some(0))
    }

    /// The volume was resized: requests on every connection are checked against `bytes` from now on.
    ///
    /// # Panics
    /// If there is no export of that index.
    pub fn set_bytes(&self, export: usize, bytes: u64) {
        self.0[export].bytes.set(bytes);
    }

    /// What connections that are gone asked of the volume has not ended yet, or now it has: until then nobody who chooses
    /// the export begins to use it. Those who have begun go on.
    ///
    /// # Panics
    /// If there is no export of that index.
    pub fn set_settling(&self, export: usize, is_settling: bool) {
        self.0[export].is_settling.set(is_settling);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Result<Exports, ExportsError> {
        Exports::new(names.iter().map(|name| Export::new(*name, "", 1, false)).collect())
    }

    #[test]
    fn the_empty_name_means_the_only_export() {
        assert_eq!(named(&["a"]).unwrap().find(b""), Some(0));
        assert_eq!(named(&["a", "b"]).unwrap().find(b""), None);
        assert_eq!(named(&["a", ""]).unwrap().find(b""), Some(1));
        assert_eq!(named(&["a", "b"]).unwrap().find(b"b"), Some(1));
    }

    #[test]
    fn exports_that_the_protocol_cannot_carry_are_refused() {
        assert_eq!(named(&["a", "a"]).unwrap_err(), ExportsError::Duplicate("a".into()));
        assert!(matches!(named(&["a\0"]), Err(ExportsError::Unspeakable(_))));
        assert!(matches!(named(&[&"x".repeat(4097)]), Err(ExportsError::Unspeakable(_))));
    }

    #[test]
    fn a_read_only_export_promises_no_writing() {
        let flags = Export::new("a", "", 1, true).transmission_flags(true);
        assert_eq!(flags & (flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO), 0);
        assert_eq!(flags & (flag::READ_ONLY | flag::SEND_DF), flag::READ_ONLY | flag::SEND_DF);
    }
}

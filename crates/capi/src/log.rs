//! Where errors are written of which their number does not tell enough: as Ceph's libraries do, in the file that `log_file` names, and on
//! the program's standard error unless `err_to_stderr` is false.

use crate::configuration::Configuration;
use std::fs::File;
use std::io::Write;
use std::sync::Arc;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Log {
    file: Option<Arc<File>>,
    to_stderr: bool,
}

impl Log {
    /// The one that is meant. A file that cannot be written to is none.
    #[must_use]
    pub fn new(said: &Configuration) -> Log {
        let value = |name| said.get(name).unwrap_or_default();
        let file = Some(value("log_file")).filter(|path| !path.is_empty());
        let file = file.and_then(|path| File::options().create(true).append(true).open(path).ok());
        Log { file: file.map(Arc::new), to_stderr: !matches!(value("err_to_stderr"), "false" | "0" | "no") }
    }

    /// Writes a line, in one go: others write too.
    pub fn error(&self, message: &str) {
        self.note(message);
        if self.to_stderr {
            let _ = std::io::stderr().write_all(line_of(message).as_bytes());
        }
    }

    /// Writes what is no error, and into the file alone.
    pub fn note(&self, message: &str) {
        if let Some(file) = &self.file {
            let _ = (&**file).write_all(line_of(message).as_bytes());
        }
    }
}

fn line_of(message: &str) -> String {
    format!("librbd: {message}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_written_where_the_program_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut said = Configuration::new("ceph", "admin");
        said.set("err_to_stderr", "false").unwrap();
        Log::new(&said).error("nobody hears it");
        said.set("log_file", path.to_str().unwrap()).unwrap();
        let log = Log::new(&said);
        log.error("one");
        log.clone().error("two");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "librbd: one\nlibrbd: two\n");
        said.set("log_file", "/not/there").unwrap();
        Log::new(&said).error("nobody hears it");
    }
}

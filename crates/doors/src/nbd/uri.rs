//! Where an export is, as people write it: `nbd://host:port/export`, `nbd+unix:///export?socket=PATH`
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md>).

use super::protocol::PORT;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// On TCP.
    Tcp {
        /// A name or an address, an IPv6 one without its brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// On a Unix socket.
    Unix(PathBuf),
}

/// A server and one of its exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUri {
    /// Where the server listens.
    pub address: NbdAddress,
    /// The export's name; empty for the server's default.
    pub export: String,
}

/// Why a text is no NBD URI.
#[derive(thiserror::Error, Debug, PartialEq, Eq)]
pub enum NbdUriError {
    /// It begins with something else.
    #[error("{0:?} is not an NBD URI; write nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH")]
    Scheme(String),
    /// No host, or a port that is none.
    #[error("{0:?}: write the server as HOST or HOST:PORT, an IPv6 address in brackets")]
    Server(String),
    /// A Unix socket without its path, or with a host.
    #[error("{0:?}: name the socket, as in nbd+unix:///EXPORT?socket=/run/millpond.sock")]
    Socket(String),
    /// A `%` without two hexadecimal digits, or bytes that are no UTF-8.
    #[error("{0:?}: after % stand two hexadecimal digits, and the whole is UTF-8")]
    Escape(String),
}

impl FromStr for NbdUri {
    type Err = NbdUriError;

    fn from_str(text: &str) -> Result<NbdUri, NbdUriError> {
        let scheme = || NbdUriError::Scheme(text.to_owned());
        let (name, rest) = text.split_once("://").ok_or_else(scheme)?;
        let rest = rest.split('#').next().unwrap_or_default();
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (server, path) = location.split_once('/').unwrap_or((location, ""));
        let decode = |part: &str| decode(part).ok_or_else(|| NbdUriError::Escape(text.to_owned()));
        let export = decode(path)?;
        let address = match name {
            "nbd" => tcp(server).ok_or_else(|| NbdUriError::Server(text.to_owned()))?,
            "nbd+unix" => {
                let socket = query.split('&').find_map(|pair| pair.strip_prefix("socket="));
                match socket {
                    Some(socket) if !socket.is_empty() && server.is_empty() => {
                        NbdAddress::Unix(PathBuf::from(decode(socket)?))
                    }
                    _ => return Err(NbdUriError::Socket(text.to_owned())),
                }
            }
            _ => return Err(scheme()),
        };
        Ok(NbdUri { address, export })
    }
}

fn tcp(server: &str) -> Option<NbdAddress> {
    let (host, rest) = match server.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?,
        None => server.split_at(server.find(':').unwrap_or(server.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => port.parse().ok()?,
        None if rest.is_empty() => PORT,
        None => return None,
    };
    let is_host = !host.is_empty() && !host.contains(['[', ']']);
    is_host.then(|| NbdAddress::Tcp { host: host.to_owned(), port })
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = tail else { return None };
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        bytes.push((digit(high)? * 16 + digit(low)?) as u8);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

fn encode(text: &str, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/:@".contains(&byte) {
            write!(formatter, "{}", char::from(byte))?;
        } else {
            write!(formatter, "%{byte:02X}")?;
        }
    }
    Ok(())
}

impl fmt::Display for NbdUri {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            NbdAddress::Tcp { host, port } => {
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(formatter, "nbd://{open}{host}{close}:{port}/")?;
                encode(&self.export, formatter)
            }
            NbdAddress::Unix(path) => {
                write!(formatter, "nbd+unix:///")?;
                encode(&self.export, formatter)?;
                write!(formatter, "?socket=")?;
                encode(&path.to_string_lossy(), formatter)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> Result<NbdUri, NbdUriError> {
        Ok(NbdUri { address: NbdAddress::Tcp { host: host.into(), port }, export: export.into() })
    }

    #[test]
    fn uris_read_as_other_tools_write_them() {
        assert_eq!("nbd://localhost".parse(), tcp("localhost", 10_809, ""));
        assert_eq!("nbd://10.0.0.1:9000/demo".parse(), tcp("10.0.0.1", 9000, "demo"));
        assert_eq!("nbd://[::1]:9000/a/b%20c".parse(), tcp("::1", 9000, "a/b c"));
        assert_eq!("nbd://[::1]/".parse(), tcp("::1", 10_809, ""));
        let unix = NbdUri { address: NbdAddress::Unix("/tmp/a b.sock".into()), export: "demo".into() };
        assert_eq!("nbd+unix:///demo?socket=/tmp/a%20b.sock".parse(), Ok(unix));
        assert_eq!("nbd+unix://?socket=s".parse::<NbdUri>().unwrap().export, "");
    }

    #[test]
    fn what_is_printed_reads_back() {
        for text in ["nbd://[::1]:9000/a/b%20c%25", "nbd+unix:///x%3Fy?socket=/tmp/%26.sock"] {
            let uri: NbdUri = text.parse().unwrap();
            assert_eq!(uri.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_uri_is_refused_with_its_reason() {
        let refused = |text: &str| text.parse::<NbdUri>().unwrap_err();
        for text in ["", "demo", "http://x/y", "nbds://x/y"] {
            assert!(matches!(refused(text), NbdUriError::Scheme(_)), "{text}");
        }
        for text in ["nbd://", "nbd:///x", "nbd://h:99999/", "nbd://h:/", "nbd://[::1/x", "nbd://[::1]9/"] {
            assert!(matches!(refused(text), NbdUriError::Server(_)), "{text}");
        }
        // As it would be shown, it would be no URI.
        for text in ["nbd://[[h]/", "nbd://h]/"] {
            assert!(matches!(refused(text), NbdUriError::Server(_)), "{text}");
        }
        for text in ["nbd+unix:///x", "nbd+unix:///x?socket=", "nbd+unix://host/x?socket=/s"] {
            assert!(matches!(refused(text), NbdUriError::Socket(_)), "{text}");
        }
        for text in ["nbd://h/%", "nbd://h/%4", "nbd://h/%zz", "nbd://h/%ff", "nbd://h/%+1"] {
            assert!(matches!(refused(text), NbdUriError::Escape(_)), "{text}");
        }
    }
}

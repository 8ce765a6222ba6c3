//! The format in which Ceph's `rbd export-diff` writes what changed in a volume ("rbd diff v1", described in Ceph's documentation,
//! `doc/dev/rbd-diff.rst`), as a stream.
//!
//! A banner; then what it is about, each record a letter and what follows, numbers little-endian: `f` and `t` the names of the
//! snapshots between which it lies (length: 4 bytes), `s` the size (8 bytes); then in any order `w` data and `z` zeros (offset and length:
//! 8 bytes each; the data); at last `e`. Readers stop there. What is written here goes on with one line, that bears a CRC-64 (NVM Express
//! Base Specification 2.0, 5.2.1.3.4) of all that stands before it: a stream of this program is checked to the last bit, one of Ceph for
//! being whole.

use anyhow::{Context, bail, ensure};
use crc_fast::{CrcAlgorithm, Digest};
use std::io::{self, ErrorKind, Read, Write};

const BANNER: &[u8] = b"rbd diff v1\n";
const CHECK: &str = "millpond crc64nvme ";
/// The line of the checksum: [`CHECK`], 16 digits, a line feed.
const CHECK_BYTES: usize = CHECK.len() + 17;
/// No snapshot has a longer name, here or in Ceph.
const NAME_BYTES_MAX: u32 = 4096;

/// What a stream is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The snapshot that it goes on from. None: it is all that there is.
    pub from: Option<String>,
    /// The snapshot that it leads to. None: what the volume held.
    pub to: Option<String>,
    /// The size of the volume then, in bytes.
    pub bytes: u64,
}

/// A change of a volume. Of data the bytes follow, to be read with [`DiffReader::data`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It holds something else.
    Data {
        /// From the volume's start, in bytes.
        offset: u64,
        /// In bytes.
        length: u64,
    },
    /// It holds zeros.
    Zeros {
        /// From the volume's start, in bytes.
        offset: u64,
        /// In bytes.
        length: u64,
    },
}

/// Writes a stream.
pub struct DiffWriter<W> {
    out: W,
    digest: Digest,
}

impl<W: Write> DiffWriter<W> {
    /// Begins one.
    pub fn begin(out: W, subject: &Subject) -> io::Result<DiffWriter<W>> {
        let mut writer = DiffWriter { out, digest: Digest::new(CrcAlgorithm::Crc64Nvme) };
        writer.put(BANNER)?;
        for (letter, name) in [(b'f', &subject.from), (b't', &subject.to)] {
            if let Some(name) = name {
                writer.put(&[letter])?;
                writer.put(&(name.len() as u32).to_le_bytes())?;
                writer.put(name.as_bytes())?;
            }
        }
        writer.put(b"s")?;
        writer.put(&subject.bytes.to_le_bytes())?;
        Ok(writer)
    }

    /// Data that lies there.
    pub fn data(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.head(b'w', offset, data.len() as u64)?;
        self.put(data)
    }

    /// Zeros that lie there.
    pub fn zeros(&mut self, offset: u64, length: u64) -> io::Result<()> {
        self.head(b'z', offset, length)
    }

    /// Ends the stream, and gives back where it went.
    pub fn end(mut self) -> io::Result<W> {
        self.put(b"e")?;
        self.out.flush()?;
        let check = format!("{CHECK}{:016x}\n", self.digest.finalize());
        // Who reads it as Ceph does may be gone by now, having all that it wants.
        match self.out.write_all(check.as_bytes()).and_then(|()| self.out.flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
            _ => Ok(self.out),
        }
    }

    fn head(&mut self, letter: u8, offset: u64, length: u64) -> io::Result<()> {
        self.put(&[letter])?;
        self.put(&offset.to_le_bytes())?;
        self.put(&length.to_le_bytes())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.out.write_all(bytes)
    }
}

/// Reads a stream.
pub struct DiffReader<R> {
    input: R,
    digest: Digest,
    at: u64,
    subject: Subject,
    /// The letter of the record that comes next.
    next: u8,
    /// Bytes of data that are to be read first.
    left: u64,
}

impl<R: Read> DiffReader<R> {
    /// Begins, and reads what it is about.
    ///
    /// # Errors
    /// It is not of that format, or cut short.
    pub fn begin(input: R) -> anyhow::Result<DiffReader<R>> {
        let digest = Digest::new(CrcAlgorithm::Crc64Nvme);
        let mut reader = DiffReader { input, digest, at: 0, subject: Subject::default(), next: 0, left: 0 };
        let mut banner = [0; BANNER.len()];
        reader.get(&mut banner)?;
        ensure!(
            banner == BANNER,
            "it is no \"rbd diff v1\"; `millpond volume export` and `rbd export-diff` write such"
        );
        let mut bytes = None;
        loop {
            let letter = reader.byte()?;
            match letter {
                b'f' | b't' => {
                    let name = reader.name()?;
                    let of = if letter == b'f' { &mut reader.subject.from } else { &mut reader.subject.to };
                    ensure!(of.replace(name).is_none(), "it names a snapshot twice");
                }
                b's' => {
                    ensure!(bytes.replace(reader.number()?).is_none(), "it tells two sizes");
                }
                other => {
                    reader.next = other;
                    reader.subject.bytes = bytes.context("it does not tell how large the volume is")?;
                    return Ok(reader);
                }
            }
        }
    }

    /// What it is about.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The next change. None at the end, which it has checked then.
    ///
    /// # Errors
    /// It is cut short, not what was written, or reaches beyond the end of the volume.
    pub fn next(&mut self) -> anyhow::Result<Option<Change>> {
        assert_eq!(self.left, 0, "data is read before what follows it");
        let letter = self.next;
        if letter == b'e' {
            self.check_end()?;
            return Ok(None);
        }
        ensure!(
            letter == b'w' || letter == b'z',
            "it has something at byte {} that is of no known kind ({letter:#04x})",
            self.at - 1
        );
        let (offset, length) = (self.number()?, self.number()?);
        let size = self.subject.bytes;
        ensure!(
            offset.checked_add(length).is_some_and(|end| end <= size),
            "what it changes at byte {offset} reaches beyond the end of the volume, which has {size}"
        );
        if letter == b'w' {
            self.left = length;
            if length == 0 {
                self.next = self.byte()?;
            }
            return Ok(Some(Change::Data { offset, length }));
        }
        self.next = self.byte()?;
        Ok(Some(Change::Zeros { offset, length }))
    }

    /// So many of the bytes of data that follow, all of them or as many as there is room for. None when there are no more.
    ///
    /// # Errors
    /// It is cut short.
    pub fn data<'a>(&mut self, room: &'a mut [u8]) -> anyhow::Result<Option<&'a [u8]>> {
        if self.left == 0 {
            return Ok(None);
        }
        let count = self.left.min(room.len() as u64) as usize;
        self.get(&mut room[..count])?;
        self.left -= count as u64;
        if self.left == 0 {
            self.next = self.byte()?;
        }
        Ok(Some(&room[..count]))
    }

    fn check_end(&mut self) -> anyhow::Result<()> {
        let (found, mut line) = (self.digest.finalize(), Vec::new());
        (&mut self.input).take(CHECK_BYTES as u64 + 1).read_to_end(&mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let check =
            std::str::from_utf8(&line).ok().and_then(|line| line.strip_prefix(CHECK)?.strip_suffix('\n'));
        let check =
            check.filter(|digits| digits.len() == 16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        match check {
            Some(check) if check == found => Ok(()),
            Some(_) => bail!("it is not what was written: its checksum does not match"),
            None => bail!(
                "something stands behind its end that is no checksum; was it cut short, or put together?"
            ),
        }
    }

    fn name(&mut self) -> anyhow::Result<String> {
        let mut length = [0; 4];
        self.get(&mut length)?;
        let length = u32::from_le_bytes(length);
        ensure!(length <= NAME_BYTES_MAX, "it has a snapshot's name of {length} bytes");
        let mut name = vec![0; length as usize];
        self.get(&mut name)?;
        String::from_utf8(name).context("it has a snapshot's name that is no text")
    }

    fn number(&mut self) -> anyhow::Result<u64> {
        let mut bytes = [0; 8];
        self.get(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn byte(&mut self) -> anyhow::Result<u8> {
        let mut byte = [0];
        self.get(&mut byte)?;
        Ok(byte[0])
    }

    fn get(&mut self, room: &mut [u8]) -> anyhow::Result<()> {
        match self.input.read_exact(room) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                bail!("it is cut short, behind byte {}; fetch it once more", self.at)
            }
            read => read?,
        }
        self.digest.update(room);
        self.at += room.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        Subject { from: Some("a".to_owned()), to: Some("b".to_owned()), bytes: 100 }
    }

    fn written() -> Vec<u8> {
        let mut writer = DiffWriter::begin(Vec::new(), &subject()).unwrap();
        writer.data(10, b"hello").unwrap();
        writer.zeros(50, 50).unwrap();
        writer.end().unwrap()
    }

    /// All that a stream says.
    fn read(stream: &[u8]) -> anyhow::Result<(Subject, Vec<Change>, Vec<u8>)> {
        let mut reader = DiffReader::begin(stream)?;
        let (mut changes, mut all) = (Vec::new(), Vec::new());
        while let Some(change) = reader.next()? {
            changes.push(change);
            let mut room = [0; 2];
            while let Some(data) = reader.data(&mut room)? {
                all.extend_from_slice(data);
            }
        }
        Ok((reader.subject().clone(), changes, all))
    }

    #[test]
    fn what_is_written_is_read_and_has_the_bytes_that_other_programs_expect() {
        let stream = written();
        let changes = [Change::Data { offset: 10, length: 5 }, Change::Zeros { offset: 50, length: 50 }];
        assert_eq!(read(&stream).unwrap(), (subject(), changes.to_vec(), b"hello".to_vec()));
        let expected = b"rbd diff v1\nf\x01\0\0\0at\x01\0\0\0bs\x64\0\0\0\0\0\0\0w\x0a\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0hello\
                         z\x32\0\0\0\0\0\0\0\x32\0\0\0\0\0\0\0e";
        assert_eq!(&stream[..expected.len()], expected);
        // One of another program ends there.
        assert_eq!(read(expected).unwrap().1.len(), 2);
    }

    #[test]
    fn what_is_cut_short_or_changed_is_refused() {
        let stream = written();
        let whole = stream.len() - CHECK_BYTES;
        for length in (0..stream.len()).filter(|length| *length != whole) {
            assert!(read(&stream[..length]).is_err(), "{length} of {} bytes", stream.len());
        }
        for at in 0..stream.len() {
            let mut changed = stream.clone();
            changed[at] ^= 1;
            assert!(read(&changed).is_err(), "byte {at}");
        }
        let longer = [&stream[..], b"\n"].concat();
        assert!(read(&longer).unwrap_err().to_string().contains("behind its end"));
    }

    #[test]
    fn what_cannot_be_is_refused_in_words() {
        let refused = |stream: &[u8]| read(stream).unwrap_err().to_string();
        assert!(refused(b"rbd image v2\0").contains("no \"rbd diff v1\""));
        assert!(refused(b"rbd diff v1\ne").contains("how large"));
        assert!(refused(b"rbd diff v1\nf\xff\xff\xff\xff").contains("name of 4294967295 bytes"));
        let with = |tail: &[u8]| [b"rbd diff v1\ns\x64\0\0\0\0\0\0\0", tail].concat();
        assert!(refused(&with(b"x")).contains("no known kind (0x78)"));
        assert!(refused(&with(b"z\x64\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0e")).contains("beyond the end"));
        assert!(
            refused(&with(b"z\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0e"))
                .contains("beyond the end")
        );
        assert!(refused(&with(b"s\x64\0\0\0\0\0\0\0e")).contains("two sizes"));
    }
}

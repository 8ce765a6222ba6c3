//! One volume or snapshot, asked, read and written to in order, with enough under way to keep the cluster busy.

use crate::host::directory::Directory;
use anyhow::bail;
use base::{Buffer, LayerId, VolumeId};
use client::{Change, Outcome, Space, VolumeHandle};
use ring::{Event, ReactorOptions};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use volume::{OpenAs, SessionOptions, VolumeLoop};

/// The most bytes of one operation.
pub const CHUNK_BYTES: u64 = 1 << 20;
/// Operations under way.
const DEPTH: usize = 16;
/// How long a turn may wait.
const TURN: Duration = Duration::from_millis(100);

/// See the module's documentation.
pub struct Worker {
    volumes: VolumeLoop,
    handle: VolumeHandle,
    events: Vec<Event>,
    spares: Vec<Buffer>,
    next: u64,
    in_flight: usize,
    /// What came back of reads that are not next.
    read: BTreeMap<u64, Buffer>,
    told: Option<Outcome>,
}

impl Worker {
    /// Has the one volume that is named, or opens the snapshot, as [`SessionOptions::volumes`] names them.
    ///
    /// # Errors
    /// It is not there, or attached elsewhere.
    pub fn open(directory: &Directory, what: String, open: OpenAs, purpose: &str) -> anyhow::Result<Worker> {
        let options = SessionOptions {
            cluster: directory.access(None)?,
            volumes: vec![what],
            open,
            timeout: None,
            purpose: purpose.to_owned(),
            note: None,
        };
        let volumes = VolumeLoop::attach(options, ReactorOptions::default())?;
        let handle = volumes.volumes()[0].handle;
        let (events, spares, read) = (Vec::new(), Vec::new(), BTreeMap::new());
        Ok(Worker { volumes, handle, events, spares, next: 0, in_flight: 0, read, told: None })
    }

    /// The volume, or that of the snapshot.
    pub fn volume(&self) -> VolumeId {
        self.volumes.volumes()[0].id
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.volumes.volume_bytes(self.handle)
    }

    /// What of a range may have changed since the snapshot of a layer; None: what is there.
    ///
    /// # Errors
    /// The cluster refused.
    pub fn changed(
        &mut self,
        offset: u64,
        length: u64,
        since: Option<LayerId>,
    ) -> anyhow::Result<Vec<(u64, Change)>> {
        self.volumes.changed(self.handle, self.next, offset, length, since);
        match self.answer()? {
            Outcome::Changed(told) => Ok(told),
            other => unreachable!("what changed is answered by {other:?}"),
        }
    }

    /// What room a range takes, by whole objects.
    ///
    /// # Errors
    /// The cluster refused.
    pub fn space(&mut self, offset: u64, length: u64) -> anyhow::Result<Space> {
        self.volumes.space(self.handle, self.next, offset, length);
        match self.answer()? {
            Outcome::Space(told) => Ok(told),
            other => unreachable!("what room is taken is answered by {other:?}"),
        }
    }

    /// The answer to a question that was asked, with nothing else under way.
    fn answer(&mut self) -> anyhow::Result<Outcome> {
        (self.next, self.in_flight) = (self.next + 1, self.in_flight + 1);
        loop {
            self.turn()?;
            if let Some(told) = self.told.take() {
                return Ok(told);
            }
        }
    }

    /// Reads ranges, and hands over what they hold, in order.
    ///
    /// # Errors
    /// Something cannot be read; those of `take`.
    pub fn read(
        &mut self,
        ranges: impl IntoIterator<Item = (u64, u64)>,
        mut take: impl FnMut(u64, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut left = ranges.into_iter().flat_map(|(offset, length)| parts(offset, length, CHUNK_BYTES));
        let mut awaited: VecDeque<(u64, u64, u64)> = VecDeque::new();
        loop {
            while awaited.len() < DEPTH
                && let Some((offset, length)) = left.next()
            {
                let buffer = self.buffer();
                self.volumes.read(self.handle, self.next, offset, length, buffer);
                awaited.push_back((self.next, offset, length));
                (self.next, self.in_flight) = (self.next + 1, self.in_flight + 1);
            }
            let Some((token, offset, length)) = awaited.front().copied() else { return Ok(()) };
            match self.read.remove(&token) {
                Some(buffer) => {
                    take(offset, &buffer.bytes()[..length as usize])?;
                    awaited.pop_front();
                    self.spares.push(buffer);
                }
                None => self.turn()?,
            }
        }
    }

    /// Writes, sooner or later.
    ///
    /// # Errors
    /// Something that was written before cannot be.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> anyhow::Result<()> {
        for (at, length) in parts(0, data.len() as u64, CHUNK_BYTES) {
            let mut buffer = self.buffer();
            let memory = buffer.bytes_mut().expect("a spare buffer has one holder");
            memory[..length as usize].copy_from_slice(&data[at as usize..][..length as usize]);
            self.volumes.write(self.handle, self.next, offset + at, length, buffer);
            self.submitted()?;
        }
        Ok(())
    }

    /// Zeroes, sooner or later.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn zero(&mut self, offset: u64, length: u64) -> anyhow::Result<()> {
        self.volumes.zero(self.handle, self.next, offset, length);
        self.submitted()
    }

    /// Waits until all is written.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn finish(&mut self) -> anyhow::Result<()> {
        while self.in_flight > 0 {
            self.turn()?;
        }
        Ok(())
    }

    /// Goes on, for a moment, with whatever the cluster asks of who has the volume.
    ///
    /// # Errors
    /// The volume is attached no more, or something failed.
    pub fn turn(&mut self) -> anyhow::Result<()> {
        let turned = self.volumes.turn(Some(TURN), &mut self.events);
        self.events.clear();
        while let Some(completion) = self.volumes.poll_completion() {
            self.in_flight -= 1;
            match (completion.outcome, completion.buffer) {
                (Outcome::Failed(error), _) => bail!("{error}"),
                (told @ (Outcome::Changed(_) | Outcome::Space(_)), _) => self.told = Some(told),
                (_, Some(buffer)) if buffer.is_unique() => {
                    self.read.insert(completion.token, buffer);
                }
                // It is still on its way out.
                _ => {}
            }
        }
        let spares = &mut self.spares;
        self.volumes.take_released(|buffer| {
            if buffer.is_unique() && spares.len() < DEPTH {
                spares.push(buffer);
            }
        });
        Ok(turned?)
    }

    fn submitted(&mut self) -> anyhow::Result<()> {
        (self.next, self.in_flight) = (self.next + 1, self.in_flight + 1);
        while self.in_flight >= DEPTH {
            self.turn()?;
        }
        // Of writes nobody waits for their buffers.
        self.spares.extend(std::mem::take(&mut self.read).into_values());
        self.spares.truncate(DEPTH);
        Ok(())
    }

    fn buffer(&mut self) -> Buffer {
        self.spares.pop().unwrap_or_else(|| Buffer::new(CHUNK_BYTES as usize))
    }
}

/// A range in parts of at most `each` bytes, that end where multiples of that do.
pub fn parts(offset: u64, length: u64, each: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = offset + length;
    std::iter::successors(Some(offset), move |at| Some((at / each + 1) * each))
        .take_while(move |at| *at < end)
        .map(move |at| (at, ((at / each + 1) * each).min(end) - at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_where_multiples_of_a_chunk_end() {
        let cut = |offset, length| parts(offset, length, CHUNK_BYTES).collect::<Vec<_>>();
        let chunk = CHUNK_BYTES;
        assert_eq!(cut(5, 0), []);
        assert_eq!(cut(5, 7), [(5, 7)]);
        assert_eq!(cut(chunk - 1, 2), [(chunk - 1, 1), (chunk, 1)]);
        assert_eq!(cut(chunk, 2 * chunk + 3), [(chunk, chunk), (2 * chunk, chunk), (3 * chunk, 3)]);
    }
}

//! A volume as a target: the client that front doors use, on the measuring thread.

use crate::engine::{Completion, Kind, Operation, Target, TargetError};
use base::Buffer;
use client::{Outcome, VolumeHandle};
use ring::{Event, ReactorOptions};
use std::time::Duration;
use volume::{ClusterAccess, OpenAs, SessionOptions, VolumeLoop};

/// Connections, all of them to OSDs.
const CONNECTIONS_MAX: u32 = 1024;

/// An attached volume. It is detached when this is dropped.
pub struct VolumeTarget {
    volumes: VolumeLoop,
    volume: VolumeHandle,
    /// Absent while the slot's operation is in flight.
    buffers: Vec<Option<Buffer>>,
    /// Buffers that came back from being sent after their operation had ended.
    spares: Vec<Buffer>,
    block_bytes: usize,
    events: Vec<Event>,
}

impl VolumeTarget {
    /// Attaches the volume `name` of a cluster, with `depth` slots of `block_bytes`. `open` says how it is had. An operation that takes longer than `timeout` fails.
    ///
    /// # Errors
    /// No such cluster or volume, or it is attached by somebody who does not share it.
    pub fn attach(
        cluster: &ClusterAccess,
        name: &str,
        open: OpenAs,
        depth: u32,
        block_bytes: u32,
        timeout: Option<Duration>,
    ) -> Result<VolumeTarget, TargetError> {
        let options = SessionOptions {
            cluster: cluster.clone(),
            volumes: vec![name.to_owned()],
            open,
            timeout,
            purpose: "millpond bench".to_owned(),
            note: None,
        };
        let reactor = ReactorOptions { connections_max: CONNECTIONS_MAX, ..ReactorOptions::default() };
        let volumes = VolumeLoop::attach(options, reactor).map_err(|error| TargetError(error.to_string()))?;
        let volume = volumes.volumes()[0].handle;
        let block_bytes = block_bytes as usize;
        Ok(VolumeTarget {
            volumes,
            volume,
            buffers: (0..depth).map(|_| Some(Buffer::new(block_bytes))).collect(),
            spares: Vec::new(),
            block_bytes,
            events: Vec::new(),
        })
    }

    /// The slot's buffer, held by nobody else. After a write it may still be on its way out, held by the
    /// reactor although the answer came already; then another takes its place.
    fn own_buffer(&mut self, slot: u32) -> &mut Buffer {
        let buffer = self.buffers[slot as usize].as_mut().expect("the slot has nothing in flight");
        if !buffer.is_unique() {
            *buffer = self.spares.pop().unwrap_or_else(|| Buffer::new(self.block_bytes));
        }
        buffer
    }
}

impl Target for VolumeTarget {
    fn bytes(&self) -> u64 {
        self.volumes.volume_bytes(self.volume)
    }

    fn alignment_bytes(&self) -> u32 {
        1
    }

    fn data_mut(&mut self, slot: u32) -> &mut [u8] {
        self.own_buffer(slot).bytes_mut().expect("it is the buffer's only holder")
    }

    fn submit(&mut self, operation: Operation) -> Result<(), TargetError> {
        let Operation { slot, kind, offset, length } = operation;
        self.own_buffer(slot);
        let buffer = self.buffers[slot as usize].take().expect("the slot has nothing in flight");
        let (token, length) = (u64::from(slot), u64::from(length));
        match kind {
            Kind::Read => self.volumes.read(self.volume, token, offset, length, buffer),
            Kind::Write => self.volumes.write(self.volume, token, offset, length, buffer),
        }
        Ok(())
    }

    fn wait(&mut self, limit: Duration, completions: &mut Vec<Completion>) -> Result<(), TargetError> {
        let deadline = self.volumes.now().max(ring::now()) + limit;
        loop {
            let turned = self.volumes.turn(Some(limit), &mut self.events);
            // Only wake-ups, which the loop has heard itself.
            self.events.clear();
            while let Some(completion) = self.volumes.poll_completion() {
                let slot = completion.token as u32;
                self.buffers[slot as usize] = completion.buffer;
                let result = match completion.outcome {
                    Outcome::Failed(error) => Err(error.to_string()),
                    Outcome::Done | Outcome::Allocated(_) | Outcome::Changed(_) | Outcome::Space(_) => Ok(()),
                };
                completions.push(Completion { slot, result });
            }
            let spares = &mut self.spares;
            let depth = self.buffers.len();
            self.volumes.take_released(|buffer| {
                if buffer.is_unique() && spares.len() < depth {
                    spares.push(buffer);
                }
            });
            turned.map_err(|error| TargetError(error.to_string()))?;
            if !completions.is_empty() || self.volumes.now() >= deadline {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cpu::Monitor;
    use crate::engine::plan::{Job, Mode, TargetName};
    use crate::engine::run;
    use std::ops::ControlFlow;
    use volume::testing::{Faults, TestCluster};

    fn cluster() -> (tempfile::TempDir, TestCluster) {
        let directory = tempfile::tempdir().unwrap();
        let cluster = TestCluster::start(directory.path());
        cluster.create_volume("disk", 16 << 20);
        (directory, cluster)
    }

    fn job(mode: Mode, depth: u32, io_size: u64) -> Job {
        Job {
            depth,
            runtime: None,
            io_size: Some(io_size),
            ..Job::new(TargetName::Volume("disk".into()), mode)
        }
    }

    fn attach(cluster: &TestCluster, job: &Job) -> VolumeTarget {
        VolumeTarget::attach(&cluster.access(), "disk", OpenAs::Owner, job.depth, job.block.0 as u32, None)
            .unwrap()
    }

    #[test]
    fn a_prefilled_volume_holds_what_the_generator_stamped() {
        let (_directory, cluster) = cluster();
        let prefill = Job::prefill(TargetName::Volume("disk".into()), 16 << 20);
        let mut target = attach(&cluster, &prefill);
        let monitor = Monitor::new(Vec::new());
        let measured = run(&mut target, &prefill, &monitor, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((measured.writes.count(), measured.errors), (16, 0), "{:?}", measured.first_error);
        let (length, mut completions) = (1 << 20, Vec::new());
        target.submit(Operation { slot: 0, kind: Kind::Read, offset: 5 << 20, length }).unwrap();
        while completions.is_empty() {
            target.wait(Duration::from_secs(1), &mut completions).unwrap();
        }
        for (index, block) in target.data_mut(0).chunks(4096).enumerate() {
            assert_eq!(block[..8], ((5u64 << 20) + index as u64 * 4096).to_le_bytes());
        }
    }

    #[test]
    fn reads_and_writes_share_slots_however_late_a_send_is_done() {
        let (_directory, cluster) = cluster();
        let job = job(Mode::RandomReadWrite, 64, 64 << 20);
        let mut target = attach(&cluster, &job);
        let monitor = Monitor::new(Vec::new());
        let measured = run(&mut target, &job, &monitor, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(measured.reads.count() + measured.writes.count(), 16_384);
        assert!(target.spares.len() <= 64);
    }

    #[test]
    fn a_refusal_is_counted_and_a_lost_attachment_ends_the_job() {
        let (_directory, cluster) = cluster();
        let job = job(Mode::RandomWrite, 4, 16 << 20);
        let mut target = attach(&cluster, &job);
        let monitor = Monitor::new(Vec::new());
        cluster.set_faults(Faults { refuse_writes: Some(wire::Status::NoSpace), ..Faults::default() });
        let measured = run(&mut target, &job, &monitor, |_| ControlFlow::Continue(())).unwrap();
        assert!(measured.errors > 0 && measured.first_error.unwrap().contains("full"));
        cluster.set_faults(Faults { silent: true, ..Faults::default() });
        cluster.take_over("disk");
        let error = run(&mut target, &job, &monitor, |_| ControlFlow::Continue(())).unwrap_err();
        assert!(error.to_string().contains("lease ended"), "{error}");
    }
}

//! An image that is open: a volume, or a snapshot of one, on a thread of its own.

mod inbox;
mod operation;
mod slots;
mod worker;

use crate::cluster::Connected;
use crate::completion::Completion;
use crate::entry::without_signals;
use crate::errno::{Answer, Errno};
use crate::memory::Memory;
use base::map::VolumeInfo;
use base::{LayerId, VolumeId};
use client::Change;
use inbox::Inbox;
use operation::{Request, Work};
use ring::ReactorOptions;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;
use volume::{OpenAs, SessionOptions, VolumeLoop};
use worker::Worker;

/// What people see an open image as, beside who has it.
const PURPOSE: &str = "librbd";
/// No place is told that something ended.
const NOWHERE: c_int = -1;
/// Connections of an image: to OSDs.
const CONNECTIONS_MAX: u32 = 4096;

/// How an image is opened.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Its volume's full name.
    pub volume: String,
    /// Which snapshot of it, if one.
    pub snapshot: Option<String>,
    /// It is not changed.
    pub is_read_only: bool,
}

/// Completions that have ended, for who asks which.
struct Ended {
    list: Mutex<VecDeque<Arc<Completion>>>,
    /// Where it is told that some have.
    notified: AtomicI32,
}

impl Ended {
    fn list(&self) -> MutexGuard<'_, VecDeque<Arc<Completion>>> {
        // Nothing that can panic runs while it is held.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, completion: Arc<Completion>) {
        let descriptor = self.notified.load(Ordering::Relaxed);
        if descriptor == NOWHERE {
            return;
        }
        self.list().push_back(completion);
        // SAFETY: it is the program's, and stays open: it is not closed here.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
        // One that is full tells it already.
        let _ = (&*file).write(&1u64.to_ne_bytes());
    }
}

/// What the program's threads and the one that works on the image both have.
struct Shared {
    inbox: Inbox,
    ended: Arc<Ended>,
}

impl Shared {
    /// Tells that it ended: by its callback, then in the list of those that have, then there where that is waited for.
    fn ended(&self, mut request: Request, result: i64) {
        if let Some(completion) = request.end(result).filter(|ended| ended.is_the_program_s()) {
            self.ended.add(completion);
        }
    }
}

/// However the thread ends, nobody waits for it any more.
struct Closes(Arc<Shared>);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.inbox.close(Errno(libc::EIO));
        let mut left = Vec::new();
        self.0.inbox.take(&mut left);
    }
}

/// The thread that works on an image. Dropping it has it end what is under way, and waits for that.
struct Live {
    shared: Arc<Shared>,
    /// None: it is being waited for.
    thread: Option<JoinHandle<()>>,
}

impl Live {
    /// Starts one, and says which volume it works on.
    fn start(cluster: &Connected, opening: &Opening, ended: Arc<Ended>) -> Answer<(Live, VolumeId)> {
        let name = match &opening.snapshot {
            Some(snapshot) => format!("{}@{snapshot}", opening.volume),
            None => opening.volume.clone(),
        };
        let options = SessionOptions {
            cluster: cluster.access().clone(),
            volumes: vec![name],
            open: if opening.is_read_only { OpenAs::Reader } else { OpenAs::Writer },
            timeout: cluster.operation_limit(),
            purpose: PURPOSE.to_owned(),
        };
        let (told, opened) = sync_channel(1);
        let work = move || {
            let reactor = ReactorOptions { connections_max: CONNECTIONS_MAX, ..ReactorOptions::default() };
            let mut volume = match VolumeLoop::attach(options, reactor) {
                Ok(volume) => volume,
                // If nobody waits any more, nothing was opened for them.
                Err(error) => return drop(told.send(Err(Errno::from(&error)))),
            };
            let inbox = Inbox::new(volume.reactor().waker(), std::thread::current().id());
            let shared = Arc::new(Shared { inbox, ended });
            let id = volume.volumes()[0].id;
            if told.send(Ok((shared.clone(), id))).is_ok() {
                let _closes = Closes(shared.clone());
                Worker::new(shared, volume).run();
            }
        };
        let thread = without_signals(|| std::thread::Builder::new().name("librbd".to_owned()).spawn(work));
        let thread = thread.map_err(|_| Errno(libc::EAGAIN))?;
        let (shared, volume) = opened.recv().map_err(|_| Errno(libc::EIO))??;
        Ok((Live { shared, thread: Some(thread) }, volume))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // One that has ended takes nothing more.
        let _ = self.shared.inbox.put(Request::new(Work::Close, (0, 0), 0, Completion::unknown()));
        if let Some(thread) = self.thread.take().filter(|_| !self.shared.inbox.is_of_worker()) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

struct State {
    opening: Opening,
    /// None: it could not be opened again.
    live: Option<Live>,
}

/// See the module's documentation.
pub struct Image {
    pub cluster: Arc<Connected>,
    pub volume: VolumeId,
    state: RwLock<State>,
    ended: Arc<Ended>,
}

impl Image {
    /// Opens it.
    ///
    /// # Errors
    /// It is not there, or may not be had.
    pub fn open(cluster: Arc<Connected>, opening: Opening) -> Answer<Image> {
        let ended = Arc::new(Ended { list: Mutex::default(), notified: AtomicI32::new(NOWHERE) });
        let (live, volume) = Live::start(&cluster, &opening, ended.clone())?;
        // What it was opened by is shown by the cluster's map too, soon.
        cluster.wait_for(move |map| map.volumes.contains_key(&volume));
        Ok(Image { cluster, volume, state: RwLock::new(State { opening, live: Some(live) }), ended })
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes it when all that was wanted is done, and waits for that.
    ///
    /// # Errors
    /// `EDEADLK`: this is the thread that has to do it.
    pub fn close(self) -> Answer<()> {
        self.check_may_wait()?;
        drop(self);
        Ok(())
    }

    /// Gives it up, does something with its volume that nobody may have meanwhile, and opens it again, as `opening` says.
    ///
    /// # Errors
    /// What came of it; `EDEADLK`; or it cannot be opened again, and is as if it were closed.
    pub fn apart(
        &self,
        work: impl FnOnce(&str) -> Answer<()>,
        opening: impl FnOnce(Opening) -> Opening,
    ) -> Answer<()> {
        self.check_may_wait()?;
        let name = self.name()?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.live = None;
        let done = work(&name);
        let before = Opening { volume: name, ..state.opening.clone() };
        let next = if done.is_ok() { opening(before.clone()) } else { before.clone() };
        let (live, opening) = match Live::start(&self.cluster, &next, self.ended.clone()) {
            Ok((live, _)) => (live, next),
            // What it was before can be had still.
            Err(error) if done.is_ok() => {
                let (live, _) = Live::start(&self.cluster, &before, self.ended.clone())?;
                (*state) = State { opening: before, live: Some(live) };
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        *state = State { opening, live: Some(live) };
        done
    }

    /// Whether the calling thread may wait for what it wants of the image: a callback may not, which others wait for.
    ///
    /// # Errors
    /// `EDEADLK`.
    pub fn check_may_wait(&self) -> Answer<()> {
        let state = self.state();
        let is_of_worker = state.live.as_ref().is_some_and(|live| live.shared.inbox.is_of_worker());
        if is_of_worker { Err(Errno(libc::EDEADLK)) } else { Ok(()) }
    }

    /// What the map says of its volume.
    ///
    /// # Errors
    /// `ENOENT`: it was removed.
    pub fn info(&self) -> Answer<VolumeInfo> {
        let map = self.cluster.map();
        map.volumes.get(&self.volume).filter(|info| !info.removed).cloned().ok_or(Errno(libc::ENOENT))
    }

    /// The full name that its volume has now.
    ///
    /// # Errors
    /// `ENOENT`: it was removed.
    pub fn name(&self) -> Answer<String> {
        let info = self.info()?;
        let map = self.cluster.map();
        let pool = map.pools.get(&info.pool).ok_or(Errno(libc::ENOENT))?;
        let place = base::names::PlaceName { pool: pool.name.clone(), namespace: info.namespace };
        Ok(format!("{place}/{}", info.name))
    }

    /// As which snapshot it is open, if as one.
    pub fn snapshot_name(&self) -> Option<String> {
        self.state().opening.snapshot.clone()
    }

    /// Its size, in bytes: a snapshot's is that of its moment.
    ///
    /// # Errors
    /// `ENOENT`: it was removed.
    pub fn bytes(&self) -> Answer<u64> {
        let (map, state) = (self.cluster.map(), self.state());
        let bytes = match &state.opening.snapshot {
            None => map.volumes.get(&self.volume).filter(|info| !info.removed).map(|info| info.bytes),
            Some(name) => {
                let layer = map.snapshot_named(self.volume, name);
                layer.and_then(|layer| map.snapshot(layer)).map(|info| info.bytes)
            }
        };
        bytes.ok_or(Errno(libc::ENOENT))
    }

    /// As much of a range as lies within the image.
    ///
    /// # Errors
    /// `EINVAL`: none of it does.
    pub fn within(&self, offset: u64, length: u64) -> Answer<u64> {
        if length == 0 {
            return Ok(0);
        }
        let left = self.bytes()?.checked_sub(offset).filter(|left| *left > 0).ok_or(Errno(libc::EINVAL))?;
        Ok(left.min(length))
    }

    /// The name under which what is noted of its volume is changed.
    ///
    /// # Errors
    /// `EROFS`: it was opened to be read.
    pub fn to_change(&self) -> Answer<String> {
        if self.state().opening.is_read_only { Err(Errno(libc::EROFS)) } else { self.name() }
    }

    /// Whether its bytes may be changed.
    ///
    /// # Errors
    /// `EROFS`: it was opened to be read, or is a snapshot.
    pub fn check_writable(&self) -> Answer<()> {
        let state = self.state();
        let is_read_only = state.opening.is_read_only || state.opening.snapshot.is_some();
        if is_read_only { Err(Errno(libc::EROFS)) } else { Ok(()) }
    }

    fn leave(&self, work: Work, range: (u64, u64), result: i64, completion: Arc<Completion>) -> Answer<()> {
        let state = self.state();
        let live = state.live.as_ref().ok_or(Errno(libc::ESHUTDOWN))?;
        live.shared.inbox.put(Request::new(work, range, result, completion))
    }

    /// The completion ends with that, as if it had been tried: by the thread that ends the others.
    ///
    /// # Errors
    /// The image is closed.
    pub fn refuse(&self, Errno(number): Errno, completion: Arc<Completion>) -> Answer<()> {
        self.leave(Work::Refused, (0, 0), -i64::from(number), completion)
    }

    /// Reads into memory; the completion ends with how many bytes there were.
    ///
    /// # Errors
    /// The range lies beyond the end, or the image is closed.
    pub fn read(&self, offset: u64, memory: Memory, completion: Arc<Completion>) -> Answer<()> {
        let length = self.within(offset, memory.length() as u64)?;
        self.leave(Work::Read(memory), (offset, length), length as i64, completion)
    }

    /// Writes what is in memory, again and again where the range is longer; the completion ends with `result`.
    ///
    /// # Errors
    /// The range lies beyond the end, or the image is read-only or closed.
    pub fn write(
        &self,
        (offset, length): (u64, u64),
        memory: Memory,
        result: i64,
        completion: Arc<Completion>,
    ) -> Answer<()> {
        self.check_writable()?;
        let length = self.within(offset, length)?;
        self.leave(Work::Write(memory), (offset, length), result, completion)
    }

    /// Makes zeros of a range; the completion ends with `result`.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn zero(&self, offset: u64, length: u64, result: i64, completion: Arc<Completion>) -> Answer<()> {
        self.check_writable()?;
        let length = self.within(offset, length)?;
        self.leave(Work::Zero, (offset, length), result, completion)
    }

    /// What of a range may have changed since a snapshot, by bytes in order; without one, what is there.
    ///
    /// # Errors
    /// As [`Self::wait_for`].
    pub fn changed(&self, offset: u64, length: u64, since: Option<LayerId>) -> Answer<Vec<(u64, Change)>> {
        let (told, hears) = sync_channel(1);
        self.wait_for(|completion| self.leave(Work::Changed(since, told), (offset, length), 0, completion))?;
        hears.recv().map_err(|_| Errno(libc::EIO))
    }

    /// The completion ends when all that was wanted before is done.
    ///
    /// # Errors
    /// The image is closed.
    pub fn flush(&self, completion: Arc<Completion>) -> Answer<()> {
        self.leave(Work::Flush, (0, 0), 0, completion)
    }

    /// Does what ends a completion, and waits for that.
    ///
    /// # Errors
    /// It cannot be begun, or failed; `EDEADLK`.
    pub fn wait_for(&self, begin: impl FnOnce(Arc<Completion>) -> Answer<()>) -> Answer<i64> {
        self.check_may_wait()?;
        let completion = Completion::unknown();
        begin(completion.clone())?;
        match completion.wait() {
            result if result < 0 => Err(Errno(-result as c_int)),
            result => Ok(result),
        }
    }

    /// Has it told there from now on that operations have ended.
    pub fn notify(&self, descriptor: c_int) {
        self.ended.notified.store(descriptor, Ordering::Relaxed);
    }

    /// Takes those that have ended, as many as fit. Each is the program's share.
    pub fn take_ended(&self, into: &mut [*mut c_void]) -> usize {
        let mut ended = self.ended.list();
        let count = ended.len().min(into.len());
        for (place, completion) in into.iter_mut().zip(ended.drain(..count)) {
            *place = completion.handle();
        }
        count
    }
}

//! An image that is open: a volume, or a snapshot of one, on a thread of its own.

mod inbox;
mod operation;
mod worker;

use crate::cluster::Connected;
use crate::completion::Completion;
use crate::entry::without_signals;
use crate::errno::{Answer, Errno};
use crate::memory::Memory;
use base::map::VolumeInfo;
use base::names::PlaceName;
use base::{Generation, LayerId, VolumeId};
use client::{Change, VolumeHandle};
use inbox::Inbox;
use operation::{Request, Work};
use ring::ReactorOptions;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use volume::{OpenAs, SessionOptions, VolumeLoop, WITHOUT_RING};
use worker::Worker;

/// What programs know a volume by, whatever it is called: as long as Ceph's own, which some expect.
#[must_use]
pub fn id_text(id: VolumeId) -> String {
    format!("{:012x}", id.0)
}

/// The volume that is known by that.
///
/// # Errors
/// `ENOENT`: none is.
pub fn id_of_text(text: &str) -> Answer<VolumeId> {
    u64::from_str_radix(text, 16).map(VolumeId).map_err(|_| Errno(libc::ENOENT))
}

/// What people see an open image as, beside who has it.
const PURPOSE: &str = "librbd";
/// No place is told that something ended.
const NOWHERE: c_int = -1;
/// How long it may take until what was changed is heeded.
const HEEDED_LIMIT: Duration = Duration::from_secs(10);
/// Connections of an image: to OSDs. It has no more than half of the descriptors that the program may have.
const CONNECTIONS_MAX: u32 = 4096;
/// The stack of the threads on which callbacks run, in bytes: what programs expect of one.
pub const STACK_BYTES: usize = 8 << 20;
/// What an eventfd is told of one that has ended.
const ONE: [u8; 8] = 1u64.to_ne_bytes();

/// As many connections as an image may have in this program.
fn connections_max() -> u32 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the place is one of its own.
    let is_told = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    let half = u32::try_from(limit.rlim_cur / 2).unwrap_or(CONNECTIONS_MAX);
    if is_told { half.clamp(1, CONNECTIONS_MAX) } else { CONNECTIONS_MAX }
}

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
    /// It is told there by one byte each, and not by numbers.
    is_a_pipe: AtomicBool,
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
        let is_a_pipe = self.is_a_pipe.load(Ordering::Relaxed);
        let _ = (&*file).write(if is_a_pipe { &[1] } else { &ONE });
    }
}

/// What stands for no generation: nobody has had a volume so often.
const NOT_OWNED: u64 = u64::MAX;

/// How the thread that works on an image sees it.
struct Seen {
    /// Under which generation it owns it.
    owned: AtomicU64,
    /// How large it is.
    bytes: AtomicU64,
    /// By which map.
    revision: AtomicU64,
    told: Mutex<()>,
    news: Condvar,
}

impl Seen {
    fn new(volume: &VolumeLoop, handle: VolumeHandle) -> Seen {
        let (bytes, revision) = (volume.volume_bytes(handle).into(), volume.map_revision().into());
        Seen { owned: NOT_OWNED.into(), bytes, revision, told: Mutex::default(), news: Condvar::new() }
    }

    fn note(&self, volume: &VolumeLoop, handle: VolumeHandle) {
        let owned = volume.owned(handle).map_or(NOT_OWNED, |generation| u64::from(generation.0));
        self.owned.store(owned, Ordering::Relaxed);
        let revision = volume.map_revision();
        if revision == self.revision.load(Ordering::Relaxed) {
            return;
        }
        self.bytes.store(volume.volume_bytes(handle), Ordering::Relaxed);
        let _told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        self.revision.store(revision, Ordering::Release);
        self.news.notify_all();
    }

    /// Waits a while until that map is heeded.
    fn wait_for(&self, revision: u64) {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_older = |(): &mut ()| self.revision.load(Ordering::Acquire) < revision;
        // Where it is not, what is wanted next finds that out.
        drop(self.news.wait_timeout_while(told, HEEDED_LIMIT, is_older));
    }
}

/// What the program's threads and the one that works on the image both have.
struct Shared {
    inbox: Inbox,
    ended: Arc<Ended>,
    seen: Seen,
}

impl Shared {
    /// Tells that it ended: by its callback, then in the list of those that have, then there where that is waited for.
    fn ended(&self, mut request: Request, result: i64) {
        request.end(result, |completion| {
            if completion.is_the_program_s() {
                self.ended.add(completion.clone());
            }
        });
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
struct Running {
    shared: Arc<Shared>,
    /// None: it is being waited for.
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts one, and says which volume it works on.
    fn start(cluster: &Connected, opening: &Opening, ended: Arc<Ended>) -> Answer<(Running, VolumeId)> {
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
            note: None,
        };
        let (told, opened) = sync_channel(1);
        let log = cluster.log().clone();
        let work = move || {
            let reactor = ReactorOptions { connections_max: connections_max(), ..ReactorOptions::default() };
            let mut volume = match VolumeLoop::attach(options, reactor) {
                Ok(volume) => volume,
                // If nobody waits any more, nothing was opened for them.
                Err(error) => return drop(told.send(Err(Errno::from(&error)))),
            };
            if volume.is_polled() {
                log.note(WITHOUT_RING);
            }
            let inbox = Inbox::new(volume.reactor().waker(), std::thread::current().id());
            let (id, handle) = (volume.volumes()[0].id, volume.volumes()[0].handle);
            let shared = Arc::new(Shared { inbox, ended, seen: Seen::new(&volume, handle) });
            if told.send(Ok((shared.clone(), id))).is_ok() {
                let _closes = Closes(shared.clone());
                Worker::new(shared, volume, log).run();
            }
        };
        let thread = without_signals(|| {
            std::thread::Builder::new().name("librbd".to_owned()).stack_size(STACK_BYTES).spawn(work)
        });
        let thread = thread.map_err(|_| Errno(libc::EAGAIN))?;
        let (shared, volume) = opened.recv().map_err(|_| Errno(libc::EIO))??;
        Ok((Running { shared, thread: Some(thread) }, volume))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended takes nothing more.
        if let Err((_, request)) =
            self.shared.inbox.put(Request::new(Work::Close, (0, 0), 0, Completion::unknown()))
        {
            request.forget();
        }
        if let Some(thread) =
            self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id())
        {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Who works on an image.
enum Live {
    There(Running),
    /// A thread that ends; and then another begins. What its own callbacks want it does still.
    Apart(Arc<Shared>),
    /// Nobody: it could not be opened again.
    Gone,
}

struct State {
    opening: Opening,
    live: Live,
}

/// See the module's documentation.
pub struct Image {
    state: Mutex<State>,
    /// Somebody works on it again, or nobody ever will.
    settled: Condvar,
    ended: Arc<Ended>,
    was_changed: AtomicBool,
    pub volume: VolumeId,
    // What works on the image is gone when it goes.
    pub cluster: Arc<Connected>,
}

/// Has an image that is apart settled, however that ends.
struct Settles<'a> {
    image: &'a Image,
    opening: Opening,
    live: Live,
}

impl Drop for Settles<'_> {
    fn drop(&mut self) {
        let mut state = self.image.state();
        state.opening = self.opening.clone();
        state.live = std::mem::replace(&mut self.live, Live::Gone);
        self.image.settled.notify_all();
    }
}

impl Image {
    /// Opens it.
    ///
    /// # Errors
    /// It is not there, or may not be had.
    pub fn open(cluster: Arc<Connected>, opening: Opening) -> Answer<Image> {
        let ended = Arc::new(Ended {
            list: Mutex::default(),
            notified: AtomicI32::new(NOWHERE),
            is_a_pipe: AtomicBool::new(false),
        });
        let (running, volume) = Running::start(&cluster, &opening, ended.clone())?;
        // What it was opened by is shown by the cluster's map too, soon.
        cluster.wait_for(move |map| map.volumes.contains_key(&volume));
        let (state, settled) = (Mutex::new(State { opening, live: Live::There(running) }), Condvar::new());
        Ok(Image { cluster, volume, state, settled, ended, was_changed: AtomicBool::new(false) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the thread that works on it has too; if it is apart, that of the thread that works on it next.
    fn shared(&self) -> Answer<Arc<Shared>> {
        let mut state = self.state();
        loop {
            match &state.live {
                Live::There(running) => return Ok(running.shared.clone()),
                Live::Apart(ending) if ending.inbox.is_of_worker() => return Ok(ending.clone()),
                Live::Apart(_) => state = self.settled.wait(state).unwrap_or_else(PoisonError::into_inner),
                Live::Gone => return Err(Errno(libc::ESHUTDOWN)),
            }
        }
    }

    /// Takes away the thread that works on it, which ends, to be dropped where nothing is held. [`Settles`] comes next.
    fn part(&self) -> Answer<(Running, Opening)> {
        // If it is apart, it is waited for.
        self.shared()?;
        let mut state = self.state();
        let opening = state.opening.clone();
        match std::mem::replace(&mut state.live, Live::Gone) {
            Live::There(running) => {
                state.live = Live::Apart(running.shared.clone());
                Ok((running, opening))
            }
            // Another was faster.
            other => {
                state.live = other;
                Err(Errno(libc::EBUSY))
            }
        }
    }

    /// Does all that was wanted, and nothing more: what is wanted from now on is refused.
    ///
    /// # Errors
    /// `EDEADLK`: this is the thread that has to do it.
    pub fn stop(&self) -> Answer<()> {
        self.check_may_wait()?;
        match self.part() {
            Ok((running, opening)) => {
                let _settles = Settles { image: self, opening, live: Live::Gone };
                drop(running);
                Ok(())
            }
            // Nobody works on it as it is.
            Err(Errno(libc::ESHUTDOWN)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives it up, does something with its volume that nobody may have meanwhile, and opens it again, as `opening` says. Whoever
    /// wants something of it meanwhile waits.
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
        let (running, opening_before) = self.part()?;
        let before = Opening { volume: name.clone(), ..opening_before };
        let mut settles = Settles { image: self, opening: before.clone(), live: Live::Gone };
        // Its callbacks may want something of the image meanwhile, so nothing is held.
        drop(running);
        let done = work(&name);
        let start = |opening: &Opening| {
            let (running, volume) = Running::start(&self.cluster, opening, self.ended.clone())?;
            // Another may be called so by now.
            if volume == self.volume { Ok(running) } else { Err(Errno(libc::ENOENT)) }
        };
        let next = if done.is_ok() { opening(before.clone()) } else { before.clone() };
        let opened = start(&next).map(|running| (running, next));
        let (running, opening, done) = match (opened, done) {
            (Ok((running, next)), done) => (running, next, done),
            // What it was before can be had still.
            (Err(error), Ok(())) => (start(&before)?, before, Err(error)),
            (Err(error), Err(_)) => return Err(error),
        };
        (settles.live, settles.opening) = (Live::There(running), opening);
        done
    }

    /// Whether the calling thread may wait for what it wants of the image: a callback may not, which others wait for.
    ///
    /// # Errors
    /// `EDEADLK`.
    pub fn check_may_wait(&self) -> Answer<()> {
        let is_of_worker = match &self.state().live {
            Live::There(running) => running.shared.inbox.is_of_worker(),
            Live::Apart(ending) => ending.inbox.is_of_worker(),
            Live::Gone => false,
        };
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
        Ok(format!("{}/{}", self.place()?, self.info()?.name))
    }

    /// The pool and the namespace of its volume.
    ///
    /// # Errors
    /// `ENOENT`: it was removed.
    pub fn place(&self) -> Answer<PlaceName> {
        let (info, map) = (self.info()?, self.cluster.map());
        let pool = map.pools.get(&info.pool).ok_or(Errno(libc::ENOENT))?;
        Ok(PlaceName { pool: pool.name.clone(), namespace: info.namespace })
    }

    /// As which snapshot it is open, if as one.
    pub fn snapshot_name(&self) -> Option<String> {
        self.state().opening.snapshot.clone()
    }

    /// Its size, in bytes: a snapshot's is that of its moment.
    ///
    /// # Errors
    /// `ESHUTDOWN`: it is closed.
    pub fn bytes(&self) -> Answer<u64> {
        Ok(self.shared()?.seen.bytes.load(Ordering::Relaxed))
    }

    /// The same, as of now: another may have changed it. A callback is told what is known here.
    ///
    /// # Errors
    /// Those.
    pub fn bytes_now(&self) -> Answer<u64> {
        let (known, volume) = (self.bytes()?, self.volume);
        if self.check_may_wait().is_err() || self.snapshot_name().is_some() {
            return Ok(known);
        }
        let now = self.cluster.map_now()?.volumes.get(&volume).map(|info| info.bytes);
        if now.is_some_and(|now| now != known) {
            self.cluster.wait_for(move |map| map.volumes.get(&volume).map(|info| info.bytes) == now);
            self.catch_up()?;
        }
        self.bytes()
    }

    /// Waits until what was changed of the cluster, as its map shows it, is heeded here.
    ///
    /// # Errors
    /// `ESHUTDOWN`: it is closed. `EDEADLK`: a callback would wait for its own thread.
    pub fn catch_up(&self) -> Answer<()> {
        self.check_may_wait()?;
        self.shared()?.seen.wait_for(self.cluster.map().revision);
        Ok(())
    }

    /// Under which generation this program owns it, if it does.
    ///
    /// # Errors
    /// `ESHUTDOWN`: it is closed, or was taken away.
    pub fn owned(&self) -> Answer<Option<Generation>> {
        let shared = self.shared()?;
        if let Some(error) = shared.inbox.closed() {
            return Err(error);
        }
        let owned = shared.seen.owned.load(Ordering::Relaxed);
        Ok(u32::try_from(owned).ok().map(Generation))
    }

    /// Owns it, and waits for that. Who `keeps` it gives it to nobody until [`Self::let_go`].
    ///
    /// # Errors
    /// `EROFS`: another keeps it. `ESHUTDOWN`: it is closed.
    pub fn own(&self, keeps: bool) -> Answer<()> {
        self.wait_for(|completion| self.leave(Work::Own { keeps }, (0, 0), 0, completion)).map(drop)
    }

    /// Owns it no more, when what was begun is done, and waits for that.
    ///
    /// # Errors
    /// `ESHUTDOWN`: it is closed.
    pub fn let_go(&self) -> Answer<()> {
        self.wait_for(|completion| self.leave(Work::LetGo, (0, 0), 0, completion)).map(drop)
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

    /// Whether this program wanted to change something of what it holds.
    pub fn was_changed(&self) -> bool {
        self.was_changed.load(Ordering::Relaxed)
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
        let mut request = Request::new(work, range, result, completion);
        loop {
            let shared = match self.shared() {
                Ok(shared) => shared,
                Err(error) => {
                    request.forget();
                    return Err(error);
                }
            };
            request = match shared.inbox.put(request) {
                Ok(()) => return Ok(()),
                // It may be another thread's by now.
                Err((error, request)) if self.is_still(&shared) => {
                    request.forget();
                    return Err(error);
                }
                Err((_, request)) => request,
            };
        }
    }

    /// Whether that is what the thread has that works on it.
    fn is_still(&self, shared: &Arc<Shared>) -> bool {
        match &self.state().live {
            Live::There(running) => Arc::ptr_eq(&running.shared, shared),
            Live::Apart(ending) => Arc::ptr_eq(ending, shared) && ending.inbox.is_of_worker(),
            Live::Gone => true,
        }
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

    /// Writes what is in memory, again and again where the range is longer; the completion ends with what `result` makes of how
    /// many bytes of it lie within the image.
    ///
    /// # Errors
    /// The range lies beyond the end, or the image is read-only or closed.
    pub fn write(
        &self,
        (offset, length): (u64, u64),
        memory: Memory,
        result: impl FnOnce(u64) -> i64,
        completion: Arc<Completion>,
    ) -> Answer<()> {
        let length = self.within(offset, length)?;
        self.check_writable()?;
        self.was_changed.store(true, Ordering::Relaxed);
        self.leave(Work::Write(memory), (offset, length), result(length), completion)
    }

    /// Makes zeros of a range; the completion ends as in [`Self::write`].
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn zero(
        &self,
        (offset, length): (u64, u64),
        result: impl FnOnce(u64) -> i64,
        completion: Arc<Completion>,
    ) -> Answer<()> {
        let length = self.within(offset, length)?;
        self.check_writable()?;
        self.was_changed.store(true, Ordering::Relaxed);
        self.leave(Work::Zero, (offset, length), result(length), completion)
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
        match completion.wait()? {
            result if result < 0 => Err(Errno(-result as c_int)),
            result => Ok(result),
        }
    }

    /// Has it told there from now on that operations have ended: by a byte each, or by numbers.
    pub fn notify(&self, descriptor: c_int, is_a_pipe: bool) {
        self.ended.is_a_pipe.store(is_a_pipe, Ordering::Relaxed);
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

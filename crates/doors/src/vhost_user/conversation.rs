//! What a front-end says, on a thread of its own: it is parsed by `vhost`, and done by the thread that has the device.

use super::configuration::protocol_features;
use super::device::{Device, Reply};
use super::memory::REGIONS_MAX;
use super::ring::Addresses;
use ring::Waker;
use std::fs::File;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandler, VhostUserProtocolFeatures,
};

/// What the thread of the device is to do.
pub(super) type Order = Box<dyn FnOnce(&mut Device) + Send>;

/// The way to the device.
#[derive(Clone)]
pub(super) struct Orders {
    pub(super) queue: Sender<Order>,
    pub(super) waker: Waker,
}

impl Orders {
    fn give(&self, order: impl FnOnce(&mut Device) + Send + 'static) -> io::Result<()> {
        let ended = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the volume is not served any more");
        self.queue.send(Box::new(order)).map_err(ended)?;
        self.waker.wake();
        Ok(())
    }

    /// Has something done that may take a while, and waits for it.
    fn wait<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut Device, Reply<T>) + Send + 'static,
    ) -> io::Result<T> {
        let (reply, answer) = sync_channel(1);
        self.give(move |device| order(device, reply))?;
        let ended = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the volume is not served any more");
        answer.recv().map_err(ended)?
    }

    /// Has something done.
    fn ask<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut Device) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let wait = self.wait(move |device, reply| {
            // Whoever asked waits.
            let _ = reply.send(order(device));
        });
        wait.map_err(Error::ReqHandlerError)
    }
}

/// Serves front-ends, one after the other, until it is shut down.
pub(super) struct Host {
    listener: UnixListener,
    orders: Orders,
    /// Who is there.
    current: Mutex<Option<UnixStream>>,
    is_over: AtomicBool,
}

impl Host {
    pub(super) fn new(listener: UnixListener, orders: Orders) -> Arc<Host> {
        Arc::new(Host { listener, orders, current: Mutex::new(None), is_over: AtomicBool::new(false) })
    }

    /// Ends the conversation that goes on, and [`Self::serve`].
    pub(super) fn shut_down(&self) {
        use nix::sys::socket::{Shutdown, shutdown};
        use std::os::fd::AsRawFd;
        self.is_over.store(true, Ordering::Release);
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        if let Some(stream) = &*self.current.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    pub(super) fn serve(&self) {
        while !self.is_over.load(Ordering::Acquire) {
            match self.listener.accept() {
                Ok((stream, _)) => self.converse(stream),
                Err(error) if self.is_over.load(Ordering::Acquire) => drop(error),
                Err(error) => {
                    tracing::warn!(%error, "a front-end cannot be accepted");
                    // Of descriptors there may be more in a while.
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
            }
        }
    }

    fn converse(&self, stream: UnixStream) {
        let current = stream.try_clone();
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = current.ok();
        if self.is_over.load(Ordering::Acquire) || self.orders.wait(Device::connect).is_err() {
            return;
        }
        tracing::info!("a front-end is there");
        let mut handler = BackendReqHandler::from_stream(stream, Arc::new(Conversation(self.orders.clone())));
        let end = loop {
            if let Err(end) = handler.handle_request() {
                break end;
            }
        };
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
        match end {
            Error::Disconnected | Error::SocketBroken(_) => tracing::info!("the front-end is gone"),
            Error::ReqHandlerError(error) => tracing::warn!(%error, "the front-end is sent away"),
            end => tracing::warn!(reason = %end, "the front-end is sent away"),
        }
        let _ = self.orders.give(Device::disconnect);
    }
}

/// One front-end's.
struct Conversation(Orders);

const NOT_OFFERED: Result<()> = Err(Error::InvalidOperation("it was not offered"));

impl VhostUserBackendReqHandler for Conversation {
    fn set_owner(&self) -> Result<()> {
        Ok(())
    }
    fn reset_owner(&self) -> Result<()> {
        // The protocol says that back-ends may ignore it.
        Ok(())
    }
    fn reset_device(&self) -> Result<()> {
        NOT_OFFERED
    }
    fn get_features(&self) -> Result<u64> {
        self.0.ask(|device| Ok(device.features()))
    }
    fn set_features(&self, features: u64) -> Result<()> {
        self.0.ask(move |device| device.set_features(features))
    }
    fn set_mem_table(
        &self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let regions = regions.to_vec();
        self.0.ask(move |device| device.set_memory(&regions, files)).map(|()| None)
    }
    fn set_vring_num(&self, index: u32, entries: u32) -> Result<()> {
        self.0.ask(move |device| device.set_entries(index, entries))
    }
    fn set_vring_addr(
        &self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let log = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
        let addresses = Addresses { descriptors, available, used, log };
        self.0.ask(move |device| device.set_addresses(index, addresses))
    }
    fn set_vring_base(&self, index: u32, base: u32) -> Result<()> {
        self.0.ask(move |device| device.set_base(index, base))
    }
    fn get_vring_base(&self, index: u32) -> Result<VhostUserVringState> {
        let stopped = self.0.wait(move |device, reply| device.stop_ring(index, reply));
        let base = stopped.map_err(Error::ReqHandlerError)?;
        Ok(VhostUserVringState::new(index, u32::from(base)))
    }
    fn set_vring_kick(&self, index: u8, file: Option<File>) -> Result<()> {
        self.0.ask(move |device| device.set_kick(index.into(), file))
    }
    fn set_vring_call(&self, index: u8, file: Option<File>) -> Result<()> {
        self.0.ask(move |device| device.set_call(index.into(), file))
    }
    fn set_vring_err(&self, index: u8, file: Option<File>) -> Result<()> {
        self.0.ask(move |device| device.set_error(index.into(), file))
    }
    fn get_protocol_features(&self) -> Result<VhostUserProtocolFeatures> {
        Ok(protocol_features())
    }
    fn set_protocol_features(&self, features: u64) -> Result<()> {
        match features & !protocol_features().bits() {
            0 => Ok(()),
            _ => NOT_OFFERED,
        }
    }
    fn get_queue_num(&self) -> Result<u64> {
        self.0.ask(|device| Ok(device.queues().into()))
    }
    fn set_vring_enable(&self, index: u32, is_enabled: bool) -> Result<()> {
        self.0.ask(move |device| device.set_enabled(index, is_enabled))
    }
    fn get_config(&self, offset: u32, length: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        self.0.ask(move |device| device.configuration(offset, length))
    }
    fn set_config(&self, _offset: u32, _bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        // What could be changed is a cache, and there is none. A guest may ask for it all the same, and its front-end passes it on.
        Ok(())
    }
    fn set_gpu_socket(&self, _socket: GpuBackend) -> Result<()> {
        NOT_OFFERED
    }
    fn get_shared_object(&self, _id: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("it was not offered"))
    }
    fn get_inflight_fd(&self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, entries) = (wanted.num_queues, wanted.queue_size);
        let (file, bytes) = self.0.ask(move |device| device.create_in_flight(queues, entries))?;
        Ok((VhostUserInflight::new(bytes, 0, queues, entries), file))
    }
    fn set_inflight_fd(&self, given: &VhostUserInflight, file: File) -> Result<()> {
        let place = (given.mmap_offset, given.mmap_size);
        let rings = (given.num_queues, given.queue_size);
        self.0.ask(move |device| device.set_in_flight(file, place, rings))
    }
    fn get_max_mem_slots(&self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }
    fn add_mem_region(
        &self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let region: VhostUserMemoryRegion = **region;
        self.0.ask(move |device| device.add_memory(&region, file)).map(|()| None)
    }
    fn remove_mem_region(&self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let region: VhostUserMemoryRegion = **region;
        self.0.ask(move |device| device.remove_memory(&region))
    }
    fn set_device_state_fd(
        &self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("it was not offered"))
    }
    fn check_device_state(&self) -> Result<()> {
        NOT_OFFERED
    }
    fn get_shmem_config(&self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("it was not offered"))
    }
    fn set_log_base(&self, log: &VhostUserLog, file: File) -> Result<()> {
        let (offset, bytes) = (log.mmap_offset, log.mmap_size);
        self.0.ask(move |device| device.set_log(file, offset, bytes))
    }
}

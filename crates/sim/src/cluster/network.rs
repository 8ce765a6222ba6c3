//! The network: connections that are slow, cut messages anywhere, break, and are told so at different times.
//!
//! A link has two ends, each with an id of its own. What one end sends is a stream: it arrives in order or not
//! at all, in pieces of any size. What crosses a partition waits; a link that waits for long may be given up.
//!
//! In some lives a bit of a message flips on its way now and then, where a checksum of the protocol covers it: in a header, in
//! blocks, or in the checksums that go with blocks. All else in a body (entries of logs, bits and versions of blocks, the place
//! behind which a repeat is) is as right as TCP or TLS brings it.

use super::world::{Event, Input, MILLISECOND, Process, SECOND, World};
use base::{Buffer, LinkId};
use pg::Credential;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use wire::{HEADER_BYTES, Message};

/// What a process that takes no turns may have received.
const WINDOW_BYTES: usize = 1 << 20;
/// The same for a link that is not read because its first message cannot be handled.
const STALLED_WINDOW_BYTES: usize = 64 << 10;
/// Both ends of a link that broke know of it after so long.
pub(super) const TOLD_WITHIN: u64 = 3 * SECOND;

/// Where one end stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndState {
    /// It was not accepted yet.
    Absent,
    Connecting,
    Open,
    Closed,
}

#[derive(Debug)]
struct End {
    process: Process,
    life: u32,
    state: EndState,
    /// What the machine received, and the process has not taken.
    arrived: Vec<u8>,
    /// What the process took, and has not consumed.
    inbox: Vec<u8>,
    is_announced: bool,
    is_stalled: bool,
}

/// What one end sends.
#[derive(Debug, Default)]
struct Stream {
    bytes: VecDeque<u8>,
    /// Times of arrival and lengths, in order.
    packets: VecDeque<(u64, usize)>,
    /// Shared buffers, and the position in the stream behind each.
    held: VecDeque<(u64, Buffer)>,
    sent: u64,
    delivered: u64,
    /// Behind the last byte the other end learns that the link is gone.
    closing: Option<(u64, &'static str)>,
    is_scheduled: bool,
    /// Waits for the end of a partition, or for room at the receiver.
    is_parked: bool,
}

#[derive(Debug)]
struct Link {
    ends: [End; 2],
    streams: [Stream; 2],
    address: SocketAddr,
    connect_deadline: u64,
    /// Nothing gets through any more, whether the ends know or not.
    is_broken: bool,
}

/// Every link there ever was, and who cannot reach whom.
#[derive(Debug)]
pub(super) struct Links {
    all: Vec<Option<Box<Link>>>,
    /// By sender, by receiver: the serial of the partition between them, or 0.
    partitions: Vec<Vec<u64>>,
}

impl Links {
    pub(super) fn new(processes: usize) -> Links {
        Links { all: Vec::new(), partitions: vec![vec![0; processes]; processes] }
    }

    fn get(&mut self, link: usize) -> Option<&mut Link> {
        self.all[link].as_deref_mut()
    }

    /// The links between two processes that are not broken, each with the end of the first one.
    fn between(&self, one: Process, other: Process) -> Vec<(usize, usize)> {
        let ends = |link: &Link| link.ends.each_ref().map(|end| end.process);
        let known = (0..).zip(&self.all).filter_map(|(number, link)| Some((number, link.as_deref()?)));
        let sound = known.filter(|(_, link)| !link.is_broken);
        let both = sound.filter(|(_, link)| ends(link) == [one, other] || ends(link) == [other, one]);
        both.map(|(number, link)| (number, usize::from(link.ends[0].process != one))).collect()
    }
}

/// Where a node listens in one of its lives.
pub(super) fn address_of(process: Process, life: u32) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, process.0 as u8)), 1024 + life as u16)
}

fn owner_of(address: SocketAddr) -> (Process, u32) {
    let IpAddr::V4(ip) = address.ip() else { unreachable!("the registry hands out addresses of nodes only") };
    (Process(usize::from(ip.octets()[3])), u32::from(address.port() - 1024))
}

/// Of each whole message at the front of these bytes: its header, and the blocks in it with their checksums, if there are any.
fn covered(bytes: &[u8]) -> Vec<(Range<usize>, Option<Range<usize>>)> {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Ok(Some((message, size))) = wire::parse(&bytes[at..]) {
        let covered_bytes = match message {
            Message::Write(write) => size_of_val(write.checksums) + write.data.len(),
            Message::ReplicateWrite(write) => size_of_val(write.checksums) + write.data.len(),
            Message::Fetched(fetched) => size_of_val(fetched.checksums) + fetched.data.len(),
            // What is allocated has no checksum.
            Message::Reply(reply) if reply.checksums.is_empty() => 0,
            Message::Reply(reply) => size_of_val(reply.checksums) + reply.data.len(),
            // When its blocks changed stands between them and their checksums.
            Message::PushWrite(push) => push.data.len(),
            _ => 0,
        };
        let end = at + size;
        all.push((at..at + HEADER_BYTES, (covered_bytes > 0).then_some(end - covered_bytes..end)));
        at = end;
    }
    all
}

fn id_of(link: usize, end: usize) -> LinkId {
    LinkId((link * 2 + end) as u64 + 1)
}

fn place_of(id: LinkId) -> (usize, usize) {
    let number = (id.0 - 1) as usize;
    (number / 2, number % 2)
}

/// What processes do with the network.
impl World {
    /// Whether nothing gets from one process to another.
    pub(super) fn is_cut(&self, from: Process, to: Process) -> bool {
        self.links.partitions[from.0][to.0] != 0
    }

    pub(super) fn connect(&mut self, process: Process, address: SocketAddr) -> Option<LinkId> {
        if !self.is_calm && self.random.percent(self.plan.connect_failure_percent) {
            self.coverage.count("connect: cannot begin");
            return None;
        }
        let life = self.mailboxes[process.0].life;
        let link = self.links.all.len();
        let end = |process, life, state| End {
            process,
            life,
            state,
            arrived: Vec::new(),
            inbox: Vec::new(),
            is_announced: false,
            is_stalled: false,
        };
        let (target, target_life) = owner_of(address);
        let patience = self.random.between(SECOND, 8 * SECOND);
        self.links.all.push(Some(Box::new(Link {
            ends: [end(process, life, EndState::Connecting), end(target, target_life, EndState::Absent)],
            streams: [Stream::default(), Stream::default()],
            address,
            connect_deadline: self.now + patience,
            is_broken: false,
        })));
        let delay = self.network_delay();
        self.after(delay, Event::Syn { link });
        Some(id_of(link, 0))
    }

    pub(super) fn syn(&mut self, link: usize) {
        let Some(state) = self.links.get(link) else { return };
        let (address, deadline) = (state.address, state.connect_deadline);
        let (dialer, life) = (state.ends[0].process, state.ends[0].life);
        if state.ends[0].state != EndState::Connecting || !self.is_alive(dialer, life) {
            return self.forget_if_dead(link);
        }
        let (target, target_life) = owner_of(address);
        let mailbox = &self.mailboxes[target.0];
        let (is_powered, is_there) = (mailbox.is_powered, self.is_alive(target, target_life));
        if self.is_cut(dialer, target) || self.is_cut(target, dialer) || !is_powered {
            return self.try_again(link, deadline, Event::Syn { link });
        }
        if !is_there {
            let delay = self.network_delay();
            return self.after(delay, Event::Told { link, end: 0, reason: "connection refused" });
        }
        let state = self.links.get(link).expect("it was there a moment ago");
        state.ends[1].state = EndState::Open;
        self.tell(target, Input::Accepted(id_of(link, 1)));
        let delay = self.network_delay();
        self.after(delay, Event::SynAck { link });
    }

    pub(super) fn syn_ack(&mut self, link: usize) {
        let Some(state) = self.links.get(link) else { return };
        let (dialer, target, deadline) =
            (state.ends[0].process, state.ends[1].process, state.connect_deadline);
        if state.ends[0].state != EndState::Connecting || state.is_broken {
            return;
        }
        if self.is_cut(target, dialer) {
            return self.try_again(link, deadline, Event::SynAck { link });
        }
        self.links.get(link).expect("it was there a moment ago").ends[0].state = EndState::Open;
        self.tell(dialer, Input::Connected(id_of(link, 0)));
    }

    /// What did not get through on the way to a connection comes again, until its deadline.
    fn try_again(&mut self, link: usize, deadline: u64, event: Event) {
        if self.now >= deadline {
            return self.tell_closed(link, 0, "the connection attempt timed out");
        }
        let again = self.random.between(100 * MILLISECOND, SECOND);
        self.after(again, event);
    }

    pub(super) fn send(&mut self, id: LinkId, bytes: &[u8]) {
        let (link, end) = place_of(id);
        let now = self.now;
        let delay = self.network_delay();
        let Some(state) = self.links.get(link) else { return };
        if state.ends[end].state != EndState::Open || state.is_broken || bytes.is_empty() {
            return;
        }
        let stream = &mut state.streams[end];
        stream.bytes.extend(bytes);
        stream.sent += bytes.len() as u64;
        match stream.packets.back_mut() {
            // What is sent in one turn travels together, more or less.
            Some((at, length)) if *at > now && *length < 256 << 10 => *length += bytes.len(),
            back => {
                let at = (now + delay).max(back.map_or(0, |(at, _)| *at));
                stream.packets.push_back((at, bytes.len()));
            }
        }
        self.schedule_stream(link, end);
    }

    pub(super) fn send_shared(&mut self, process: Process, id: LinkId, buffer: Buffer, range: Range<usize>) {
        self.send(id, &buffer.bytes()[range]);
        let (link, end) = place_of(id);
        if let Some(state) = self.links.get(link)
            && state.ends[end].state == EndState::Open
            && !state.is_broken
        {
            // The bytes are copied, but the memory is held as long as a kernel would.
            let stream = &mut state.streams[end];
            return stream.held.push_back((stream.sent, buffer));
        }
        self.mailboxes[process.0].released.push(buffer);
    }

    pub(super) fn unsent_bytes(&self, id: LinkId) -> usize {
        let (link, end) = place_of(id);
        self.links.all[link].as_deref().map_or(0, |state| state.streams[end].bytes.len())
    }

    /// One end ends a link. It is told too, as a reactor does.
    pub(super) fn close(&mut self, id: LinkId, reason: &'static str) {
        let (link, end) = place_of(id);
        let is_abrupt = self.random.percent(50);
        if self.links.get(link).is_some_and(|state| state.ends[end].state != EndState::Closed) {
            self.leave(link, end, is_abrupt, 0);
            self.tell_closed(link, end, reason);
        }
    }

    /// What an end that goes away leaves to the other one: perhaps its last words, then the news, which takes
    /// `delay` longer.
    fn leave(&mut self, link: usize, end: usize, is_abrupt: bool, delay: u64) {
        let at = self.now + delay + self.network_delay();
        let Some(state) = self.links.get(link) else { return };
        let was_connecting = state.ends[end].state != EndState::Open;
        let stream = &mut state.streams[end];
        if is_abrupt {
            stream.bytes.clear();
            stream.packets.clear();
        }
        let last = stream.packets.back().map_or(0, |(at, _)| *at);
        stream.closing = Some((at.max(last), "the other end closed the connection"));
        if was_connecting && state.ends[1 - end].state == EndState::Absent {
            return;
        }
        self.release_held(link, end, is_abrupt);
        self.schedule_stream(link, end);
    }

    fn release_held(&mut self, link: usize, end: usize, all: bool) {
        let Some(state) = self.links.get(link) else { return };
        let (process, life) = (state.ends[end].process, state.ends[end].life);
        let stream = &mut state.streams[end];
        let is_done = |(position, _): &&(u64, Buffer)| all || *position <= stream.delivered;
        let count = stream.held.iter().take_while(is_done).count();
        let released: Vec<Buffer> = stream.held.drain(..count).map(|(_, buffer)| buffer).collect();
        if self.is_alive(process, life) {
            self.mailboxes[process.0].released.extend(released);
        }
    }

    fn schedule_stream(&mut self, link: usize, from: usize) {
        let now = self.now;
        let Some(state) = self.links.get(link) else { return };
        let stream = &mut state.streams[from];
        if stream.is_scheduled || stream.is_parked {
            return;
        }
        let next = stream.packets.front().map(|(at, _)| *at).or(stream.closing.map(|(at, _)| at));
        if let Some(at) = next {
            stream.is_scheduled = true;
            self.after(at.saturating_sub(now), Event::Deliver { link, from });
        }
    }

    /// Bytes reach the other end, or the news that there will be no more.
    pub(super) fn deliver(&mut self, link: usize, from: usize) {
        let now = self.now;
        let is_split = self.random.one_in(4);
        let part = self.random.next_u64();
        let split_delay = self.network_delay();
        let Some(state) = self.links.get(link) else { return };
        state.streams[from].is_scheduled = false;
        let (sender, receiver) = (state.ends[from].process, state.ends[1 - from].process);
        let receiver_life = state.ends[1 - from].life;
        if state.is_broken {
            return;
        }
        if self.is_cut(sender, receiver) {
            self.links.get(link).expect("it was just there").streams[from].is_parked = true;
            return;
        }
        if !self.is_alive(receiver, receiver_life) {
            return self.answer_reset(link, from, receiver);
        }
        let state = self.links.get(link).expect("it was just there");
        let (stream, end) = (&mut state.streams[from], &mut state.ends[1 - from]);
        if end.state == EndState::Closed {
            return self.answer_reset(link, from, receiver);
        }
        let Some((at, length)) = stream.packets.front_mut() else {
            if let Some((at, reason)) = stream.closing {
                if at > now {
                    return self.schedule_stream(link, from);
                }
                self.tell_closed(link, 1 - from, reason);
            }
            return;
        };
        if *at > now {
            // It was delayed after it had been scheduled.
            return self.schedule_stream(link, from);
        }
        let window = if end.is_stalled { STALLED_WINDOW_BYTES } else { WINDOW_BYTES };
        if end.arrived.len() > window {
            stream.is_parked = true;
            return;
        }
        let mut count = *length;
        if is_split && count > 1 {
            count = 1 + (part % (count as u64 - 1)) as usize;
            *length -= count;
            *at = now + split_delay / 4;
        } else {
            stream.packets.pop_front();
        }
        // In two pieces, and not byte by byte.
        let (front, back) = stream.bytes.as_slices();
        let of_front = count.min(front.len());
        end.arrived.extend_from_slice(&front[..of_front]);
        end.arrived.extend_from_slice(&back[..count - of_front]);
        stream.bytes.drain(..count);
        stream.delivered += count as u64;
        let announce = !end.is_announced && !end.is_stalled;
        end.is_announced |= announce;
        if announce {
            self.tell(receiver, Input::Received(id_of(link, 1 - from)));
        }
        self.release_held(link, from, false);
        self.schedule_stream(link, from);
    }

    /// Bytes came to a machine where nobody wants them any more: the sender is told.
    fn answer_reset(&mut self, link: usize, from: usize, receiver: Process) {
        let state = self.links.get(link).expect("the caller looked");
        state.streams[from].bytes.clear();
        state.streams[from].packets.clear();
        self.release_held(link, from, true);
        if self.mailboxes[receiver.0].is_powered {
            let delay = self.network_delay();
            self.after(delay, Event::Told { link, end: from, reason: "connection reset by peer" });
        }
    }

    /// An end learns that its link is gone.
    pub(super) fn tell_closed(&mut self, link: usize, end: usize, reason: &'static str) {
        let Some(state) = self.links.get(link) else { return };
        let known = state.ends[end].state;
        if known == EndState::Closed {
            return;
        }
        let one = &mut state.ends[end];
        one.state = EndState::Closed;
        one.arrived = Vec::new();
        one.inbox = Vec::new();
        let (process, life) = (one.process, one.life);
        if state.streams[end].closing.is_none() {
            // It may still be that the other end does not know: what it hears next, if anything, is this.
            self.leave(link, end, true, 0);
        }
        if known != EndState::Absent && self.is_alive(process, life) {
            self.tell(process, Input::Closed(id_of(link, end), reason));
        }
        self.forget_if_dead(link);
    }

    fn forget_if_dead(&mut self, link: usize) {
        let Some(state) = self.links.all[link].as_deref() else { return };
        let is_over = |end: &End| {
            matches!(end.state, EndState::Closed | EndState::Absent) || !self.is_alive(end.process, end.life)
        };
        if state.ends.iter().all(is_over) {
            self.release_held(link, 0, true);
            self.release_held(link, 1, true);
            self.links.all[link] = None;
        }
    }

    /// A process is gone. Whoever it was connected with learns so `delay` later, or when it sends something.
    pub(super) fn cut_off(&mut self, process: Process, is_power_cut: bool) {
        for link in 0..self.links.all.len() {
            for end in 0..2 {
                let is_abrupt = is_power_cut || self.random.percent(50);
                let delay = if is_power_cut { self.random.below(8 * SECOND) } else { 0 };
                let Some(state) = self.links.get(link) else { continue };
                if state.ends[end].process == process && state.ends[end].state != EndState::Closed {
                    self.leave(link, end, is_abrupt, delay);
                    if let Some(state) = self.links.get(link) {
                        state.ends[end].state = EndState::Closed;
                    }
                    self.forget_if_dead(link);
                }
            }
        }
    }

    /// Breaks a link that stands, if there is one.
    pub(super) fn break_some_link(&mut self) -> bool {
        let open: Vec<usize> = (0..self.links.all.len())
            .filter(|link| {
                let state = self.links.all[*link].as_deref();
                state.is_some_and(|state| {
                    !state.is_broken && state.ends.iter().all(|end| end.state == EndState::Open)
                })
            })
            .collect();
        if open.is_empty() {
            return false;
        }
        let link = open[self.random.index(open.len())];
        self.break_link(link);
        true
    }

    /// Breaks whatever links there are between two processes. Both know of it within [`TOLD_WITHIN`].
    pub(super) fn break_links(&mut self, one: Process, other: Process) {
        for (link, _) in self.links.between(one, other) {
            self.break_link(link);
        }
    }

    /// Ends whatever links there are between two processes, as the first one would: it knows of it at once, and the other one as
    /// soon as that gets through.
    pub(super) fn end_links(&mut self, one: Process, other: Process) {
        for (link, end) in self.links.between(one, other) {
            self.close(id_of(link, end), "it is ended by a script");
        }
    }

    fn break_link(&mut self, link: usize) {
        // What is under way is lost, or still arrives although its sender gave it up.
        let is_broken = self.random.percent(50);
        self.links.get(link).expect("the caller found it").is_broken = is_broken;
        for end in 0..2 {
            if is_broken {
                self.release_held(link, end, true);
            }
            let delay = if self.random.percent(50) { 0 } else { self.random.below(TOLD_WITHIN) };
            self.after(delay, Event::Told { link, end, reason: "connection reset" });
            let at = self.now + delay + self.random.below(3 * SECOND);
            // Old messages may come after those of the next connection.
            let late = if self.random.percent(50) { self.random.below(2 * SECOND) } else { 0 };
            let stream = &mut self.links.get(link).expect("the caller found it").streams[end];
            for (arrival, _) in &mut stream.packets {
                *arrival += late;
            }
            stream.closing.get_or_insert((at + late, "connection reset by the network"));
        }
    }

    /// Lets nothing get from one process to another for a while.
    pub(super) fn cut(&mut self, from: Process, to: Process, duration: u64) {
        let serial = self.next_serial();
        self.links.partitions[from.0][to.0] = serial;
        self.after(duration, Event::Heal { from, to, serial });
        for link in 0..self.links.all.len() {
            let Some(state) = self.links.all[link].as_deref() else { continue };
            let between = [state.ends[0].process, state.ends[1].process];
            if (between == [from, to] || between == [to, from]) && self.random.percent(50) {
                let delay = self.random.between(500 * MILLISECOND, 8 * SECOND);
                self.after(delay, Event::LinkTimeout { link });
            }
        }
    }

    /// A link over a partition was silent for too long.
    pub(super) fn link_timeout(&mut self, link: usize) {
        let Some(state) = self.links.get(link) else { return };
        let (first, second, is_broken) = (state.ends[0].process, state.ends[1].process, state.is_broken);
        if !is_broken && (self.is_cut(first, second) || self.is_cut(second, first)) {
            self.coverage.count("link given up in a partition");
            self.break_link(link);
        }
    }

    /// Ends a partition; `serial` 0 ends whichever there is.
    pub(super) fn heal(&mut self, from: Process, to: Process, serial: u64) {
        let present = &mut self.links.partitions[from.0][to.0];
        if *present == 0 || serial != 0 && *present != serial {
            return;
        }
        *present = 0;
        self.story(Some(from), || format!("reaches {} again", self.name(to)));
        for link in 0..self.links.all.len() {
            for end in 0..2 {
                let Some(state) = self.links.get(link) else { continue };
                if state.ends[end].process == from && state.ends[1 - end].process == to {
                    state.streams[end].is_parked = false;
                    self.schedule_stream(link, end);
                }
            }
        }
    }

    /// Takes what a link brought, to be handled; `None` when the link is gone.
    pub(super) fn take_inbox(&mut self, id: LinkId) -> Option<Vec<u8>> {
        let (link, end) = place_of(id);
        let state = self.links.get(link)?;
        (state.ends[end].state == EndState::Open).then(|| std::mem::take(&mut state.ends[end].inbox))
    }

    /// What a reactor does at the start of a turn: what arrived is what the turn will see.
    pub(super) fn reap(&mut self, id: LinkId) {
        let (link, end) = place_of(id);
        let Some(state) = self.links.get(link) else { return };
        let one = &mut state.ends[end];
        one.is_announced = false;
        if one.inbox.is_empty() {
            std::mem::swap(&mut one.inbox, &mut one.arrived);
        } else {
            one.inbox.append(&mut one.arrived);
        }
        state.streams[1 - end].is_parked = false;
        self.schedule_stream(link, 1 - end);
        self.garble(link, end);
    }

    /// Flips a bit of what came, now and then: see the module's documentation.
    fn garble(&mut self, link: usize, end: usize) {
        let one_in = self.plan.garbled_one_in;
        if self.is_calm || one_in == 0 || !self.random.one_in(one_in) {
            return;
        }
        let (message, part, place, bit) =
            (self.random.next_u64(), self.random.percent(50), self.random.next_u64(), self.random.below(8));
        let Some(state) = self.links.get(link) else { return };
        let inbox = &mut state.ends[end].inbox;
        let whole = covered(inbox);
        if whole.is_empty() {
            return;
        }
        let (header, data) = &whole[(message % whole.len() as u64) as usize];
        let range = data.as_ref().filter(|_| part).unwrap_or(header);
        inbox[range.start + (place % range.len() as u64) as usize] ^= 1 << bit;
        let process = state.ends[end].process;
        self.coverage.count("a message is garbled on its way");
        self.story(Some(process), || format!("{} gets a message with a wrong bit", id_of(link, end)));
    }

    /// What whoever dialled a link proved to be, where that is checked.
    pub(super) fn credential_of(&self, id: LinkId) -> Option<Credential> {
        let (link, end) = place_of(id);
        let dialler = self.links.all[link].as_deref()?.ends[1 - end].process;
        self.credentials.get(&dialler).cloned()
    }

    /// Gives an inbox back with what was not consumed. A stalled link receives no more.
    pub(super) fn return_inbox(&mut self, id: LinkId, inbox: Vec<u8>, is_stalled: bool) {
        let (link, end) = place_of(id);
        let Some(state) = self.links.get(link) else { return };
        let one = &mut state.ends[end];
        if one.state != EndState::Open {
            return;
        }
        one.inbox = inbox;
        let goes_on = one.is_stalled && !is_stalled && !one.arrived.is_empty() && !one.is_announced;
        one.is_stalled = is_stalled;
        one.is_announced |= goes_on;
        let process = one.process;
        if goes_on {
            self.tell(process, Input::Received(id));
        }
    }

    /// Whether a link stands, as this end knows.
    pub(super) fn is_open(&self, id: LinkId) -> bool {
        let (link, end) = place_of(id);
        let state = self.links.all[link].as_deref();
        state.is_some_and(|state| state.ends[end].state == EndState::Open)
    }
}

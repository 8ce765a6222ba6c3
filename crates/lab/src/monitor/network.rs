//! What network interfaces moved between two moments, by the kernel's counters
//! (<https://docs.kernel.org/networking/statistics.html>).
//!
//! These are the interfaces of this process's network namespace. What goes over `lo` is counted as sent and
//! as received. Bytes are those of packets with their link headers; a packet is what the kernel handed over,
//! which large send offload may have the device cut up, and large receive offload has put together.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

const MIB: f64 = 1_048_576.0;

/// What was counted at one moment.
#[derive(Clone, Debug)]
pub struct Network {
    at: Instant,
    interfaces: BTreeMap<String, Counters>,
}

/// What one interface moved in a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterfaceUse {
    /// As the kernel calls it, for example `eth0`.
    pub name: String,
    /// Received.
    pub received_mib_per_second: f64,
    /// Sent.
    pub sent_mib_per_second: f64,
    /// Packets received a second.
    pub received_packets_per_second: f64,
    /// Packets sent a second.
    pub sent_packets_per_second: f64,
    /// How many packets were bad, in both directions together.
    pub errors: u64,
    /// How many packets were dropped, in both directions together: there was no room for them, or nobody who
    /// wants them.
    pub dropped: u64,
}

/// Counters of one interface, or what they grew by.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counters {
    received: Direction,
    sent: Direction,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Direction {
    bytes: u64,
    packets: u64,
    errors: u64,
    dropped: u64,
}

impl Network {
    /// As of now.
    #[must_use]
    pub fn now() -> Network {
        let text = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
        Network { at: Instant::now(), interfaces: interfaces_of(&text) }
    }

    /// What each interface moved since `earlier`, but for those that moved nothing. One that was not there at
    /// both moments is left out.
    #[must_use]
    pub fn since(&self, earlier: &Network) -> Vec<InterfaceUse> {
        let seconds = self.at.duration_since(earlier.at).as_secs_f64();
        let both =
            self.interfaces.iter().filter_map(|(name, now)| Some((name, now, earlier.interfaces.get(name)?)));
        let moved = both.filter_map(|(name, now, then)| {
            let received = now.received.since(&then.received)?;
            let sent = now.sent.since(&then.sent)?;
            let is_idle = received == Direction::NONE && sent == Direction::NONE;
            (!is_idle && seconds > 0.0).then(|| InterfaceUse {
                name: name.clone(),
                received_mib_per_second: received.bytes as f64 / MIB / seconds,
                sent_mib_per_second: sent.bytes as f64 / MIB / seconds,
                received_packets_per_second: received.packets as f64 / seconds,
                sent_packets_per_second: sent.packets as f64 / seconds,
                errors: received.errors + sent.errors,
                dropped: received.dropped + sent.dropped,
            })
        });
        moved.collect()
    }
}

impl Direction {
    const NONE: Direction = Direction { bytes: 0, packets: 0, errors: 0, dropped: 0 };

    /// `None` of an interface that was replaced by another of its name, whose counters began anew.
    fn since(&self, then: &Direction) -> Option<Direction> {
        Some(Direction {
            bytes: self.bytes.checked_sub(then.bytes)?,
            packets: self.packets.checked_sub(then.packets)?,
            errors: self.errors.checked_sub(then.errors)?,
            dropped: self.dropped.checked_sub(then.dropped)?,
        })
    }
}

/// From `/proc/net/dev`: two lines of headings, then a name with its eight counters of what was received and
/// eight of what was sent.
fn interfaces_of(text: &str) -> BTreeMap<String, Counters> {
    let interface = |line: &str| {
        // No name holds a colon, and a large number may follow it without a space.
        let (name, counters) = line.split_once(':')?;
        let numbers: Vec<u64> = counters.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let direction = |at: usize| match numbers.get(at..at + 4)? {
            &[bytes, packets, errors, dropped] => Some(Direction { bytes, packets, errors, dropped }),
            _ => None,
        };
        Some((name.trim().to_owned(), Counters { received: direction(0)?, sent: direction(8)? }))
    };
    text.lines().filter_map(interface).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    const BEFORE: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    3193      29    0    0    0     0          0         0     3193      29    0    0    0     0       0          0
  ifb0:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
  eth0:230117679    9887    0    0    0     0          0         0   572297    5503    0    0    0     0       0          0
";

    fn network(at: Instant, text: &str) -> Network {
        Network { at, interfaces: interfaces_of(text) }
    }

    #[test]
    fn what_was_captured_comes_out_as_by_hand() {
        let at = Instant::now();
        // 4 seconds later: 8 MiB in 6000 packets received, of which 3 were bad and 5 dropped; 1 MiB in 1000
        // packets sent, of which 2 were bad and 7 dropped.
        let after = BEFORE.replace(
            "eth0:230117679    9887    0    0    0     0          0         0   572297    5503    0    0 ",
            "eth0:238506287   15887    3    5    0     0          0         0  1620873    6503    2    7 ",
        );
        assert_ne!(after, BEFORE);
        let uses = network(at + Duration::from_secs(4), &after).since(&network(at, BEFORE));
        let expected = InterfaceUse {
            name: "eth0".to_owned(),
            received_mib_per_second: 2.0,
            sent_mib_per_second: 0.25,
            received_packets_per_second: 1500.0,
            sent_packets_per_second: 250.0,
            errors: 5,
            dropped: 12,
        };
        assert_eq!(uses, [expected], "and not those that moved nothing");
    }

    #[test]
    fn an_interface_that_came_since_or_began_anew_is_left_out() {
        let at = Instant::now();
        let (then, now) = (network(at, BEFORE), at + Duration::from_secs(1));
        let other = "  eth0: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  eth1: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n lo: 9999 99\n";
        assert_eq!(network(now, other).since(&then), []);
        assert_eq!(network(at, BEFORE.replace("3193", "9993").as_str()).since(&then), [], "no time");
    }

    #[test]
    fn what_is_sent_to_oneself_is_seen_between_what_the_interface_tells_inside_and_outside() {
        let counted = || {
            let text = std::fs::read_to_string("/sys/class/net/lo/statistics/rx_bytes").unwrap();
            text.trim().parse::<f64>().unwrap() / MIB
        };
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let outside = counted();
        let then = Network::now();
        let inside = counted();
        let mut buffer = [0x5a; 16 << 10];
        for _ in 0..512 {
            sender.send(&buffer).unwrap();
            assert_eq!(receiver.recv(&mut buffer).unwrap(), 16 << 10);
        }
        let inside = counted() - inside;
        let now = Network::now();
        let outside = counted() - outside;
        let uses = now.since(&then);
        let lo = uses.iter().find(|interface| interface.name == "lo").unwrap();
        let seconds = now.at.duration_since(then.at).as_secs_f64();
        let seen = lo.received_mib_per_second * seconds;
        assert!(inside >= 8.0 && seen > inside - 0.01 && seen < outside + 0.01, "{inside} {outside} {lo:?}");
        assert!(lo.sent_packets_per_second * seconds >= 511.9, "{lo:?}");
    }
}

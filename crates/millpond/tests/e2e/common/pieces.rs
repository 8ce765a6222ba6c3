//! Pieces of a volume that are written in rounds and told apart: what must be there after a cluster has moved.

use crate::common::nbd::NbdClient;

/// Bytes that a round writes at each of four objects.
const PIECE: usize = 8192;

/// Writes what a round does.
pub fn write(client: &mut NbdClient, round: u8) {
    for object in 0..4u8 {
        let offset = (u64::from(object) << 22) + u64::from(round) * PIECE as u64;
        client.write(offset, &[round * 16 + object + 1; PIECE]).expect("it can be written");
    }
}

/// Checks what so many rounds wrote.
#[track_caller]
pub fn check(client: &mut NbdClient, rounds: u8) {
    for (round, object) in (0..rounds).flat_map(|round| (0..4u8).map(move |object| (round, object))) {
        let offset = (u64::from(object) << 22) + u64::from(round) * PIECE as u64;
        let read = client.read(offset, PIECE as u32).expect("it can be read");
        assert_eq!(read, vec![round * 16 + object + 1; PIECE], "round {round}, object {object}");
    }
}

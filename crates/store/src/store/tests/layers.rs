//! What several layers of a volume hold, and who sees what of it.

use super::*;
use crate::actions::Unseen;
use base::{BlockRange, LayerSpan, Views, VolumeId};

const VOLUME: VolumeId = VolumeId(1);

fn at(layer: u32) -> ObjectKey {
    ObjectKey { layer: VOLUME.layer(layer), ..key(0) }
}

/// Who sees the volume from layers of these numbers.
fn views(from: &[u32]) -> Views {
    Views { volume: VOLUME, from: from.to_vec(), ..Views::default() }
}

fn range(layer: u32, first_block: u16, block_count: u16) -> BlockRange {
    BlockRange { key: at(layer), first_block, block_count }
}

impl Machine {
    /// A byte of its own in each block of a layer.
    fn writes(&mut self, layer: u32, first_block: u16, block_count: u16) {
        let record = self.record(at(layer), first_block, block_count);
        let data: Vec<u8> = (first_block..first_block + block_count)
            .flat_map(|block| vec![(10 * layer) as u8 + block as u8; BLOCK_BYTES])
            .collect();
        let checksums: Vec<U32> = data.chunks(BLOCK_BYTES).map(|block| U32::new(crc32c(block))).collect();
        self.store.stage_write(&record, &checksums, &data).unwrap();
        self.settle();
    }

    fn hides(&mut self, layer: u32, first_block: u16, block_count: u16) {
        let record = self.record(at(layer), first_block, block_count);
        self.store.stage_hole(&record).unwrap();
        self.settle();
    }

    /// Of each of the first blocks the byte that is seen from a layer, and the layer that holds it; None of what nothing lies on the
    /// drive of.
    fn seen(&mut self, layer: u32, count: u16) -> Vec<Option<(u32, u8)>> {
        let (mut extents, mut checksums) = (Vec::new(), Vec::new());
        let spans = [LayerSpan::down_from(VOLUME.layer(layer))];
        self.store.lookup_through(&spans, &range(layer, 0, count), &mut extents, &mut checksums);
        assert_eq!(checksums.len(), usize::from(count));
        let mut seen = Vec::new();
        for extent in extents {
            assert_eq!(usize::from(extent.first_block), seen.len(), "runs follow each other");
            for number in 0..extent.block_count {
                let checksum = checksums[seen.len()];
                seen.push(extent.location.map(|location| {
                    let mut data = [0; BLOCK_BYTES];
                    let place = location.0 + u32::from(number);
                    self.drive.read(u64::from(place) * BLOCK_BYTES as u64, &mut data).unwrap();
                    assert_eq!(crc32c(&data), checksum);
                    (extent.layer.number(), data[0])
                }));
                assert!(extent.location.is_some() || checksum == ZERO_BLOCK_CRC32C);
            }
        }
        seen
    }

    fn allocated(&self, layer: u32) -> u8 {
        let spans = [LayerSpan::down_from(VOLUME.layer(layer))];
        self.store.allocated_through(&spans, PG, 0)[0]
    }
}

/// Blocks 0 to 3 in the first layer, 1 to 4 in the third, a hole over 0 and 1 in the fifth, and 1 once more in the sixth.
fn layered() -> Machine {
    let mut machine = Machine::format(&options());
    machine.writes(0, 0, 4);
    machine.writes(2, 1, 4);
    machine.hides(4, 0, 2);
    machine.writes(5, 1, 1);
    machine
}

#[test]
fn each_layer_is_seen_with_what_lies_beneath_it_and_after_a_start_too() {
    let mut machine = layered();
    let first: Vec<_> = [Some((0, 0)), Some((0, 1)), Some((0, 2)), Some((0, 3)), None].into();
    let third: Vec<_> = [Some((0, 0)), Some((2, 21)), Some((2, 22)), Some((2, 23)), Some((2, 24))].into();
    let fifth: Vec<_> = [None, None, Some((2, 22)), Some((2, 23)), Some((2, 24))].into();
    let sixth: Vec<_> = [None, Some((5, 51)), Some((2, 22)), Some((2, 23)), Some((2, 24))].into();
    let expected = [&first, &first, &third, &third, &fifth, &sixth, &sixth];
    for _ in 0..2 {
        for (layer, expected) in (0..).zip(expected) {
            assert_eq!(machine.seen(layer, 5), *expected, "layer {layer}");
        }
        assert_eq!(
            [0, 2, 4, 9].map(|layer| machine.allocated(layer)),
            [0b1111, 0b1_1111, 0b1_1100, 0b1_1110]
        );
        // What takes no room is not counted, and a start finds it in the page.
        assert_eq!(machine.store.contents.index.block_count, 9);
        assert_eq!(machine.store.block_count(&at(4)), 2);
        let mut held = Vec::new();
        machine.store.for_each_block(&at(4), |block, crc32c, _| held.push((block, crc32c)));
        assert_eq!(held, [(0, ZERO_BLOCK_CRC32C), (1, ZERO_BLOCK_CRC32C)]);
        machine = machine.restart();
    }
    // And without a checkpoint, from the log alone.
    let mut machine = Machine::open(layered().drive, &options());
    assert_eq!(machine.seen(9, 5), sixth);
    machine.store.verify().unwrap();
}

#[test]
fn what_lies_beneath_counts_block_by_block() {
    let machine = layered();
    let beneath = |layer: u32, first_block, block_count| {
        let span = LayerSpan { volume: VOLUME, oldest: 0, newest: layer - 1 };
        machine.store.holds_some([span], &range(layer, first_block, block_count))
    };
    assert!(beneath(1, 3, 5) && !beneath(1, 4, 5) && beneath(3, 4, 1) && !beneath(3, 5, 9));
    assert!(beneath(5, 0, 1), "a hole is something");
    assert!(machine.store.are_holes(&range(4, 0, 5)) && machine.store.are_holes(&range(3, 0, 9)));
    assert!(!machine.store.are_holes(&range(5, 0, 2)));
}

#[test]
fn what_newer_layers_hide_from_everybody_is_found_and_holes_that_hide_nothing() {
    let hidden = |layer, first_block, block_count| Unseen {
        range: range(layer, first_block, block_count),
        is_hidden: true,
    };
    let machine = layered();
    let unseen = |from: &[u32]| machine.store.unseen(PG, 0, &views(from));
    assert_eq!(unseen(&[0, 1, 2, 3, 4, 5]), []);
    assert_eq!(unseen(&[0, 2, 4, 9]), [], "what is newer than most is seen by the newest");
    // Nobody sees the hole in front of the second block any more.
    assert_eq!(unseen(&[0, 2, 9]), [hidden(4, 1, 1)]);
    // The first of the four that lie in the first layer is seen from the third.
    assert_eq!(unseen(&[2, 4, 9]), [hidden(0, 1, 3)]);
    assert_eq!(unseen(&[9]), [hidden(4, 1, 1), hidden(2, 1, 1), hidden(0, 0, 4)]);
    assert_eq!(unseen(&[]), [], "somebody sees them of whom nothing is known here");
}

#[test]
fn what_a_volume_was_rolled_back_from_nobody_sees_and_what_it_lies_upon_is_hidden_by_its_new_layers_alone() {
    let all = |layer, first_block, block_count, is_hidden| Unseen {
        range: range(layer, first_block, block_count),
        is_hidden,
    };
    // It was rolled back to what it held in its first two layers, and wrote the third block since, and a hole over the fifth.
    let mut machine = layered();
    machine.writes(7, 2, 1);
    machine.hides(7, 4, 1);
    let bent = |from: &[u32]| Views { bends: [(7, 1)].into(), ..views(from) };
    let gone = [all(5, 1, 1, true), all(4, 0, 2, true), all(2, 1, 4, true)];
    // The hole hides what only the other branch sees.
    assert_eq!(machine.store.unseen(PG, 0, &bent(&[1, 7])), [&[all(7, 4, 1, false)][..], &gone].concat());
    let spans = [LayerSpan { volume: VOLUME, oldest: 7, newest: 8 }, LayerSpan::down_from(VOLUME.layer(1))];
    let (mut extents, mut checksums) = (Vec::new(), Vec::new());
    machine.store.lookup_through(&spans, &range(8, 0, 5), &mut extents, &mut checksums);
    let seen: Vec<_> = extents.iter().map(|extent| (extent.layer.number(), extent.block_count)).collect();
    assert_eq!(seen, [(0, 2), (7, 1), (0, 1), (7, 1)], "a hole lies nowhere");
    // A snapshot of the other branch sees what lies beneath both.
    let hidden = [all(7, 4, 1, false), all(4, 1, 1, true), all(2, 1, 1, true), all(0, 2, 1, true)];
    assert_eq!(machine.store.unseen(PG, 0, &bent(&[5, 7])), hidden);
    assert_eq!(
        machine.store.unseen(PG, 0, &bent(&[5])),
        hidden,
        "somebody sees the newest one, whoever it is"
    );
}

#[test]
fn holes_of_a_clone_hide_what_its_parent_holds_and_what_it_sees_of_that_is_known() {
    let clone = VolumeId(1 | 1 << 28);
    let mut machine = layered();
    let record = |machine: &mut Machine, layer, first_block, block_count| {
        let key = ObjectKey { layer: clone.layer(layer), ..key(0) };
        machine.record(key, first_block, block_count)
    };
    let hole = record(&mut machine, 1, 3, 3);
    machine.store.stage_hole(&hole).unwrap();
    machine.settle();
    let of = |beneath: Vec<LayerSpan>| Views { volume: clone, from: vec![0, 1], beneath, ..Views::default() };
    // Upon the third layer lie blocks 0 to 4.
    let upon = of(vec![LayerSpan::down_from(VOLUME.layer(2))]);
    let idle = machine.store.unseen(PG, 0, &upon);
    let range = BlockRange { key: hole.key, first_block: 5, block_count: 1 };
    assert_eq!(idle, [Unseen { range, is_hidden: false }]);
    let runs = |machine: &Machine, views: &Views| -> Vec<(u16, u16)> {
        machine.store.seen_beneath(PG, 0, views).into_iter().map(|run| (run.start, run.end)).collect()
    };
    assert_eq!(runs(&machine, &upon), [(0, 5)], "a snapshot sees what the clone itself hides");
    let hiding = Views { from: vec![1], ..upon };
    assert_eq!(runs(&machine, &hiding), [(0, 3)]);
    // From the fifth layer on the first two are zeros.
    let upon = Views { beneath: vec![LayerSpan::down_from(VOLUME.layer(4))], ..hiding };
    assert_eq!(runs(&machine, &upon), [(2, 3)]);
    assert_eq!(machine.store.unseen(PG, 0, &of(Vec::new())).len(), 1, "all of it hides nothing");
}

#[test]
fn what_a_removal_frees_is_what_nobody_sees_afterwards() {
    let machine = layered();
    let all = [0, 2, 4, 5];
    let space = machine.store.space(PG, 0, &views(&all));
    assert_eq!(space.held, 9, "holes take no room");
    for gone in all {
        let left: Vec<u32> = all.into_iter().filter(|view| *view != gone).collect();
        let unseen = machine.store.unseen(PG, 0, &views(&left));
        let data = unseen.iter().filter(|unseen| !machine.store.are_holes(&unseen.range));
        let freed: u32 = data.map(|unseen| u32::from(unseen.range.block_count)).sum();
        // What is newer than all that is left counts as seen.
        if gone < 5 {
            assert_eq!(space.alone.get(&gone).copied().unwrap_or_default(), freed, "{gone}");
        }
    }
    assert_eq!(space.alone, [(0, 3), (2, 1), (5, 1)].into());
    let head = machine.store.space(PG, 0, &views(&[9]));
    assert_eq!((head.held, head.alone), (9, [(9, 4)].into()));
}

#[test]
fn a_hole_goes_when_what_it_hid_has_gone_and_takes_no_room() {
    let mut machine = layered();
    let views = views(&[9]);
    for _ in 0..2 {
        for Unseen { range, .. } in machine.store.unseen(PG, 0, &views) {
            let record = machine.record(range.key, range.first_block, range.block_count);
            machine.store.stage_zero(&record).unwrap();
        }
        machine.settle();
    }
    assert_eq!(machine.store.unseen(PG, 0, &views), []);
    let seen: Vec<_> = [None, Some((5, 51)), Some((2, 22)), Some((2, 23)), Some((2, 24))].into();
    assert_eq!(machine.seen(9, 5), seen);
    assert_eq!(machine.store.objects().count(), 2, "nothing is left of the first layer and of the hole");
    assert_eq!(machine.store.contents.index.block_count, 4);
}

#[test]
fn a_learner_is_told_when_holes_changed_that_it_lacked() {
    let mut machine = Machine::format(&options());
    let pushed = WriteRecord { sequence: Sequence(0), ..machine.record(at(3), 7, 2) };
    machine.store.stage_pushed_hole(&pushed, Sequence(1 << 40 | 5)).unwrap();
    machine.settle();
    assert_eq!(machine.store.changed(&at(3), 8), Some(Sequence(1 << 40 | 5)));
    assert_eq!(machine.store.pg_position(PG), None, "no log tells of it");
    let mut machine = machine.restart();
    assert_eq!(machine.store.changed(&at(3), 7), Some(Sequence(1 << 40 | 5)));
    // What is written there takes its place.
    machine.writes(3, 7, 1);
    assert!(!machine.store.are_holes(&range(3, 7, 2)) && machine.store.are_holes(&range(3, 8, 1)));
    assert_eq!(machine.store.contents.index.block_count, 1);
}

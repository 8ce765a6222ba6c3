use super::*;
use base::Epoch;
use base::map::{OsdInfo, PoolInfo};

const OSD: OsdId = OsdId(0);

pub fn pg(index: u32) -> PgId {
    PgId { pool: PoolId(1), index }
}

/// Three OSDs, of which these are up, and a group for each of these lists of who is in sync.
pub fn map(up: &[u32], groups: &[&[u32]]) -> ClusterMap {
    let mut map = ClusterMap::default();
    for osd in 0..3 {
        let address = up.contains(&osd).then(|| ([127, 0, 0, 1], 7000).into());
        map.osds.insert(OsdId(osd), OsdInfo { address, ..OsdInfo::default() });
    }
    let pool = PoolInfo { name: "p".into(), size: 3, min_size: 2, ..PoolInfo::default() };
    map.pools.insert(PoolId(1), pool);
    for (index, in_sync) in (0..).zip(groups) {
        let in_sync: Vec<OsdId> = in_sync.iter().copied().map(OsdId).collect();
        let config = PgConfig { epoch: Epoch(1), primary: in_sync[0], in_sync, ..PgConfig::default() };
        map.pgs.insert(pg(index), config);
    }
    map
}

#[test]
fn the_last_good_copy_is_that_of_which_nobody_who_is_up_has_another() {
    let map = map(&[1], &[&[0, 1, 2], &[1, 2], &[0], &[0, 2], &[2]]);
    let last = LastCopies::of(&map, OSD, &BTreeSet::new());
    assert_eq!(last.alone, BTreeSet::from([pg(2)]));
    assert_eq!(last.with_others_down.keys().copied().collect::<Vec<_>>(), [pg(3)]);
    let of_pool = &last.pools[&PoolId(1)];
    assert_eq!((of_pool.pgs, of_pool.example, of_pool.down.len()), (2, pg(2), 1));
}

#[test]
fn who_catches_up_may_have_the_last_good_copy_where_the_others_want_one() {
    let mut map = map(&[1, 2], &[&[1, 2], &[1, 2], &[1, 2], &[0, 1]]);
    map.pgs.get_mut(&pg(0)).expect("it is there").learners = vec![OSD];
    map.targets.insert(pg(1), vec![OsdId(1), OSD]);
    let all: BTreeSet<PgId> = map.pgs.keys().copied().collect();
    let last = LastCopies::of(&map, OSD, &all);
    let of_pool = &last.pools[&PoolId(1)];
    assert_eq!((of_pool.pgs, of_pool.in_want, of_pool.example), (2, 2, pg(0)));
    let told = of_pool.in_words("p", 4);
    let begin = "2 of 4 placement groups of pool p, 1.0 among them (in 2 of them the others want";
    assert!(told.starts_with(begin), "{told}");
    assert!(last.alone.is_empty() && last.with_others_down.is_empty(), "no group changes for it");
    assert!(LastCopies::of(&map, OSD, &BTreeSet::new()).pools.is_empty());
}

#[test]
fn whoever_has_something_older_is_named_where_the_last_good_copy_is_given_up() {
    let mut map = map(&[1], &[&[0], &[0, 2]]);
    map.pgs.get_mut(&pg(0)).expect("it is there").learners = vec![OsdId(1)];
    map.targets.insert(pg(0), vec![OSD, OsdId(2)]);
    let last = LastCopies::of(&map, OSD, &BTreeSet::new());
    let of_pool = &last.pools[&PoolId(1)];
    assert_eq!(
        of_pool.in_words("p", 2),
        "2 of 2 placement groups of pool p, 1.0 among them (osd.2 has one too, and is down: bring that back first; \
         what osd.1 and osd.2 have of them is older, and is given up with it)"
    );
}

#[test]
fn where_the_others_want_a_block_who_is_down_is_removed_only_if_its_pool_is_given_up() {
    let mut map = map(&[1, 2], &[&[1, 2], &[1, 2]]);
    let in_want = BTreeSet::from([pg(1)]);
    assert_eq!(wanted_in_words(OSD, &map, &BTreeSet::new()), None);
    assert_eq!(
        wanted_in_words(OSD, &map, &in_want).expect("one wants it"),
        "osd.0 is down, and may have the last sound copy of a block that the others want, in 1 placement group, 1.1 among \
         them; bring it back first, and take it in; or give up what it may have: --lose-last-copy-of p"
    );
    let given_up = GivenUp { lose_last_copy_of: vec!["p".to_owned()] };
    assert!(given_up.has(&map, PoolId(1)) && !GivenUp::default().has(&map, PoolId(1)));
    map.pools.clear();
    assert!(!given_up.has(&map, PoolId(1)), "the name is another's by now, or nobody's");
}

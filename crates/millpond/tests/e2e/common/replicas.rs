//! Whether all replicas hold the same, by their stores.

use super::site::Cluster;
use super::whole::{BLOCK, groups};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use store::{Device, DeviceError, Expected, Options, Store};

/// An OSD's file, as it is after a stop. What opening a store writes is left out: nothing reads it again.
struct Image(File);

impl Image {
    fn of(path: &Path) -> Image {
        Image(File::open(path).expect("the drive's file is there"))
    }
}

impl Device for Image {
    fn bytes(&self) -> u64 {
        self.0.metadata().expect("a file has a size").len()
    }
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_exact_at(into, offset).map_err(|error| DeviceError(error.to_string()))
    }
    fn write(&mut self, _offset: u64, _data: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Which blocks of which object an OSD has, and their checksums.
type Content = BTreeMap<base::ObjectKey, BTreeMap<u16, u32>>;

/// What an OSD holds; asserts that the bytes on its drive are those of the checksums.
fn content_of(osd: u64, path: &Path) -> Content {
    let mut image = Image::of(path);
    let store = Store::open(&mut image, &Expected::default(), Options::default());
    let store = store.unwrap_or_else(|error| panic!("osd.{osd}: {error}"));
    store.verify().unwrap_or_else(|error| panic!("osd.{osd}: {error}"));
    let mut content = Content::new();
    for key in store.objects() {
        let blocks = content.entry(key).or_default();
        store.for_each_block(&key, |block, checksum, _| {
            blocks.insert(block, checksum);
        });
        let (mut extents, mut checksums) = (Vec::new(), Vec::new());
        store.lookup(&key, 0, base::OBJECT_BLOCKS as u16, &mut extents, &mut checksums);
        for extent in extents {
            let Some(location) = extent.on_drive() else { continue };
            let mut data = vec![0; usize::from(extent.block_count) * BLOCK as usize];
            image.read(u64::from(location.0) * BLOCK, &mut data).expect("the drive's file can be read");
            for (block, data) in (extent.first_block..).zip(data.chunks(BLOCK as usize)) {
                let found = base::crc32c(data);
                assert_eq!(Some(&found), blocks.get(&block), "osd.{osd}: {key} block {block} on the drive");
            }
        }
    }
    content
}

/// Stops the cluster, and compares every block of every object on all members of its group. Who is no member must
/// hold nothing of it.
pub fn replicas_are_equal(cluster: &impl Cluster, blocks_min: u64) {
    let groups: BTreeMap<base::PgId, BTreeSet<u64>> = groups(cluster)
        .iter()
        .map(|group| {
            let pg = group["pg"].as_str().expect("a group has a name").parse().expect("it is one");
            let in_sync = group["in_sync"].as_array().expect("it lists its members");
            (pg, in_sync.iter().filter_map(serde_json::Value::as_u64).collect())
        })
        .collect();
    let status = cluster.status();
    let osds = status["osds"].as_array().expect("the status lists the OSDs");
    let paths: BTreeMap<u64, String> = osds
        .iter()
        .map(|osd| {
            let path = osd["path"].as_str().expect("an OSD has a drive").to_owned();
            (osd["osd"].as_u64().expect("an OSD has a number"), path)
        })
        .collect();
    cluster.down();
    let contents: BTreeMap<u64, Content> =
        paths.iter().map(|(osd, path)| (*osd, content_of(*osd, Path::new(path)))).collect();
    let keys: BTreeSet<&base::ObjectKey> = contents.values().flat_map(BTreeMap::keys).collect();
    let mut count = 0;
    for key in keys {
        let members = &groups[&key.pg];
        let one = members.first().and_then(|osd| contents[osd].get(key)).cloned().unwrap_or_default();
        count += one.len();
        for (osd, content) in &contents {
            let other = content.get(key).cloned().unwrap_or_default();
            if members.contains(osd) {
                let differing: Vec<u16> = (0..base::OBJECT_BLOCKS as u16)
                    .filter(|block| one.get(block) != other.get(block))
                    .collect();
                assert!(
                    differing.is_empty(),
                    "osd.{osd} and osd.{:?} differ in {key}, blocks {differing:?}",
                    members.first()
                );
            } else {
                assert!(other.is_empty(), "osd.{osd} still holds {key}, whose members are {members:?}");
            }
        }
    }
    assert!(count as u64 >= blocks_min, "only {count} blocks were compared");
    eprintln!("{count} blocks are the same on all members of their groups");
}

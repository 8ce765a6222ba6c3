//! Damaged and lost data.

use crate::codes::Code;
use crate::problem::Problem;
use crate::view::{LostView, OsdView};
use base::units::ByteSize;

/// Lost ranges that are named one by one.
const RANGES_NAMED: usize = 3;

/// What an OSD met of damage.
pub(super) fn problems_of(osd: &OsdView, problems: &mut Vec<Problem>) {
    let name = osd.osd;
    if let Some(count) = osd.lost_blocks.filter(|count| *count > 0) {
        let named: Vec<String> = osd.lost.iter().take(RANGES_NAMED).map(LostView::to_string).collect();
        let more = if osd.lost.len() > RANGES_NAMED {
            " and more (`millpond status --json` lists them)"
        } else {
            ""
        };
        problems.push(Problem::new(
            Code::DataLost,
            format!(
                "{} of data are lost: no member of their placement groups has a copy that verifies: {}{more}",
                ByteSize(count * 4096),
                named.join(", ")
            ),
            "reads of them fail, never with wrong bytes; everything else works",
            "write these ranges anew from a backup, or discard them; until then reads of them fail",
        ));
    }
    if let Some(count) = osd.damaged_reads.filter(|count| *count > 0) {
        let blocks = |count: u64| if count == 1 { "1 block".to_owned() } else { format!("{count} blocks") };
        let mended = match osd.mended_blocks.unwrap_or(0) {
            0 => String::new(),
            count => format!("; as primary it wrote {} anew from sound copies", blocks(count)),
        };
        problems.push(Problem::new(
            Code::OsdDamagedBlocks,
            format!("{name} found {} whose checksum does not verify{mended}", blocks(count)),
            "such blocks are read from another member and written anew",
            format!(
                "its drive{} returned other bytes than were written; check it with `smartctl` and plan to replace it; \
                 `millpond scrub start --deep --osd {}` looks for more",
                osd.path.as_ref().map(|path| format!(" {path}")).unwrap_or_default(),
                name.0
            ),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::Level;
    use crate::view::{self, Reports};
    use base::map::{ClusterMap, OsdInfo, Trashed, VolumeInfo};
    use base::status::{LostRange, OsdStatus};
    use base::{OsdId, PoolId, VolumeId};
    use std::collections::BTreeMap;

    fn osd_with(status: OsdStatus) -> OsdView {
        let mut map = ClusterMap::default();
        let info = OsdInfo { bytes: 1 << 30, ..OsdInfo::default() };
        map.osds.insert(OsdId(0), info);
        let volume =
            VolumeInfo { name: "disk".into(), pool: PoolId(1), bytes: 1 << 30, ..VolumeInfo::default() };
        let in_trash = VolumeInfo { trashed: Some(Trashed::default()), ..volume.clone() };
        map.volumes.extend([(VolumeId(7), volume), (VolumeId(8), in_trash)]);
        let reports = Reports::from(BTreeMap::from([(OsdId(0), status)]));
        view::osds(&map, &reports, 0).remove(0)
    }

    #[test]
    fn lost_data_is_an_error_with_volume_and_range() {
        let lost = [7, 8].map(|volume| LostRange { volume: VolumeId(volume), offset: 8192, length: 4096 });
        let osd = osd_with(OsdStatus { lost_blocks: 2, lost: lost.to_vec(), ..OsdStatus::default() });
        let mut problems = Vec::new();
        problems_of(&osd, &mut problems);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].level, Level::Error);
        let what = &problems[0].what;
        assert!(
            what.contains(" disk, 4KiB at 8192") && what.contains("(in the trash: disk), 4KiB at"),
            "{what}"
        );
    }

    #[test]
    fn damage_that_was_mended_is_a_warning_that_says_so() {
        let osd = osd_with(OsdStatus { damaged_reads: 3, mended_blocks: 2, ..OsdStatus::default() });
        let mut problems = Vec::new();
        problems_of(&osd, &mut problems);
        let texts: Vec<&str> = problems.iter().map(|problem| problem.what.as_str()).collect();
        assert_eq!(
            texts,
            [
                "osd.0 found 3 blocks whose checksum does not verify; as primary it wrote 2 blocks anew from sound copies"
            ]
        );
        assert_eq!(problems[0].level, Level::Warning);
    }
}

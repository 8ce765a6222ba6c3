//! What the manager says in its log when the cluster changed: who came and went, was taken out or in, and what became of pools.

use base::OsdId;
use base::map::{Admission, ClusterMap, OsdInfo};

/// What has happened between two maps, in words, and whether somebody should look.
#[must_use]
pub fn announcements(before: &ClusterMap, now: &ClusterMap) -> Vec<(bool, String)> {
    let mut said = Vec::new();
    for (osd, info) in &now.osds {
        of_osd(*osd, before.osds.get(osd), info, &mut said);
    }
    let removed = before.osds.keys().filter(|osd| !now.osds.contains_key(osd));
    said.extend(removed.map(|osd| (false, format!("{osd} was removed from the cluster"))));
    for (id, pool) in &now.pools {
        let mut say = |text: String| said.push((false, text));
        let (name, groups) = (&pool.name, pool.pg_count);
        let Some(old) = before.pools.get(id) else {
            say(format!("pool {name} was made, with {groups} placement groups"));
            continue;
        };
        if let (None, Some(count)) = (old.split_to, pool.split_to) {
            say(format!("the placement groups of pool {name} are being split to {count}"));
        }
        if old.pg_count != groups {
            say(format!("pool {name} has {groups} placement groups"));
        }
    }
    let removed = before.pools.iter().filter(|(id, _)| !now.pools.contains_key(id));
    said.extend(removed.map(|(_, pool)| (false, format!("pool {} was removed", pool.name))));
    if before.profile != now.profile {
        said.push((false, format!("the profile is {}", now.profile)));
    }
    if before.recovery_share != now.recovery_share {
        said.push((false, format!("the share of recovery is {}", now.recovery_share)));
    }
    if before.encryption != now.encryption {
        said.push((false, format!("the cluster's encryption is {}", now.encryption)));
    }
    said
}

fn of_osd(osd: OsdId, before: Option<&OsdInfo>, now: &OsdInfo, said: &mut Vec<(bool, String)>) {
    let node = now.node;
    let was_up = before.is_some_and(|before| before.address.is_some());
    if before.is_none() {
        said.push((false, format!("{osd} was added on {node}")));
    }
    match (was_up, now.address.is_some()) {
        (true, false) => said.push((true, format!("{osd} on {node} is down"))),
        (false, true) => said.push((false, format!("{osd} on {node} is up"))),
        (true, true) if before.is_some_and(|before| before.incarnation != now.incarnation) => {
            said.push((false, format!("{osd} on {node} was started anew")));
        }
        _ => {}
    }
    let admission = before.map_or(Admission::In, |before| before.admission);
    if admission != now.admission {
        said.push(match now.admission {
            Admission::In => (false, format!("{osd} is in: data is placed on it")),
            Admission::Out => (false, format!("{osd} was taken out: what it holds moves elsewhere")),
            Admission::OutWhileDown => (
                true,
                format!(
                    "{osd} has been down for too long and was taken out: what it held is made anew elsewhere"
                ),
            ),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::NodeId;
    use base::PoolId;
    use base::map::PoolInfo;

    fn said(before: &ClusterMap, now: &ClusterMap) -> Vec<(bool, String)> {
        announcements(before, now)
    }

    #[test]
    fn what_changes_is_said_once_and_what_does_not_is_not() {
        let mut map = ClusterMap::default();
        let address = Some(([127, 0, 0, 1], 7000).into());
        let up = OsdInfo { node: NodeId(3), address, ..OsdInfo::default() };
        map.osds.insert(OsdId(5), up.clone());
        map.pools.insert(PoolId(1), PoolInfo { name: "p".to_owned(), pg_count: 8, ..PoolInfo::default() });
        let texts = |before: &ClusterMap, now: &ClusterMap| {
            said(before, now).into_iter().map(|(_, text)| text).collect::<Vec<_>>()
        };
        let first = texts(&ClusterMap::default(), &map);
        assert_eq!(
            first,
            [
                "osd.5 was added on node.3",
                "osd.5 on node.3 is up",
                "pool p was made, with 8 placement groups"
            ]
        );
        assert!(said(&map, &map).is_empty());
        let mut later = map.clone();
        later.osds.get_mut(&OsdId(5)).unwrap().address = None;
        assert_eq!(said(&map, &later), [(true, "osd.5 on node.3 is down".to_owned())]);
        let mut out = later.clone();
        out.osds.get_mut(&OsdId(5)).unwrap().admission = Admission::OutWhileDown;
        let told = said(&later, &out);
        assert!(told.len() == 1 && told[0].0 && told[0].1.contains("down for too long"), "{told:?}");
        let mut back = map.clone();
        back.osds.get_mut(&OsdId(5)).unwrap().incarnation += 1;
        assert_eq!(texts(&out, &back), ["osd.5 on node.3 is up", "osd.5 is in: data is placed on it"]);
        assert_eq!(texts(&map, &back), ["osd.5 on node.3 was started anew"]);
        let mut split = back.clone();
        split.pools.get_mut(&PoolId(1)).unwrap().split_to = Some(16);
        assert_eq!(texts(&back, &split), ["the placement groups of pool p are being split to 16"]);
        let mut done = split.clone();
        let pool = done.pools.get_mut(&PoolId(1)).unwrap();
        (pool.split_to, pool.pg_count) = (None, 16);
        assert_eq!(texts(&split, &done), ["pool p has 16 placement groups"]);
        assert_eq!(
            texts(&done, &ClusterMap::default()),
            ["osd.5 was removed from the cluster", "pool p was removed"]
        );
    }
}

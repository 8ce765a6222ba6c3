//! How the members of an etcd are, each asked by itself.

use super::EtcdOptions;
use super::link::{MEMBER_STATUS, ask_once};
use super::messages::{Nothing, StatusResponse};
use registry::RegistryTrouble;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long a member has to answer.
const LIMIT: Duration = Duration::from_millis(500);
/// The quota of an etcd that was told no other, in bytes: `--quota-backend-bytes`, 2 GiB in 3.4 to 3.6.
const QUOTA_DEFAULT: u64 = 2 << 30;
/// From this share of the quota on it is told of.
const FILLED_PERCENT: u64 = 80;
/// The oldest version that is supported.
const VERSION_MIN: (u64, u64) = (3, 4);

/// What is wrong with the members at these places.
pub(super) async fn troubles(options: &EtcdOptions, endpoints: Vec<String>) -> Vec<RegistryTrouble> {
    let mut asked = JoinSet::new();
    for member in endpoints {
        let options = options.clone();
        asked.spawn(async move {
            let status = tokio::time::timeout(LIMIT, ask_once(&options, &member, MEMBER_STATUS, Nothing {}));
            let status =
                status.await.unwrap_or_else(|_| Err(format!("no answer within {} ms", LIMIT.as_millis())));
            troubles_of(&member, status)
        });
    }
    let mut found: Vec<RegistryTrouble> = asked.join_all().await.into_iter().flatten().collect();
    found.sort_by_key(|trouble| format!("{trouble:?}"));
    found
}

fn troubles_of(member: &str, status: Result<StatusResponse, String>) -> Vec<RegistryTrouble> {
    let member = member.to_owned();
    let status = match status {
        Ok(status) => status,
        Err(reason) => return vec![RegistryTrouble::MemberDown { member, reason }],
    };
    let mut found = Vec::new();
    if status.leader == 0 {
        let reason = "it has no leader: it does not reach a majority of the others".to_owned();
        found.push(RegistryTrouble::MemberDown { member: member.clone(), reason });
    }
    let bytes = u64::try_from(status.db_size).unwrap_or(0);
    let quota = u64::try_from(status.db_size_quota).unwrap_or(0);
    let (bytes_max, is_quota_known) = if quota > 0 { (quota, true) } else { (QUOTA_DEFAULT, false) };
    if status.errors.iter().any(|error| error.contains("NOSPACE")) {
        found.push(RegistryTrouble::Full { member: member.clone() });
    } else if u128::from(bytes) * 100 >= u128::from(bytes_max) * u128::from(FILLED_PERCENT) {
        let member = member.clone();
        found.push(RegistryTrouble::Filling { member, bytes, bytes_max, is_quota_known });
    }
    if version(&status.version).is_some_and(|version| version < VERSION_MIN) {
        found.push(RegistryTrouble::Outdated { member, version: status.version });
    }
    found
}

/// Major and minor, if that is what it is.
fn version(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> StatusResponse {
        StatusResponse {
            version: "3.4.30".to_owned(),
            db_size: 1 << 20,
            leader: 7,
            ..StatusResponse::default()
        }
    }

    fn of(status: StatusResponse) -> Vec<RegistryTrouble> {
        troubles_of("a:1", Ok(status))
    }

    #[test]
    fn a_member_that_is_well_has_no_troubles_and_each_trouble_is_found() {
        assert_eq!(of(status()), []);
        let member = || "a:1".to_owned();
        let nospace = vec!["memberID:7 alarm:NOSPACE ".to_owned()];
        assert_eq!(
            of(StatusResponse { errors: nospace, ..status() }),
            [RegistryTrouble::Full { member: member() }]
        );
        assert!(matches!(
            &of(StatusResponse { leader: 0, ..status() })[..],
            [RegistryTrouble::MemberDown { reason, .. }] if reason.contains("majority")
        ));
        assert_eq!(troubles_of("a:1", Err("x".to_owned())).len(), 1);
        for (text, is_old) in [
            ("3.3.25", true),
            ("2.3.8", true),
            ("3.4.0", false),
            ("3.10.1", false),
            ("4.0.0", false),
            ("", false),
        ] {
            let found = of(StatusResponse { version: text.to_owned(), ..status() });
            assert_eq!(found.len(), usize::from(is_old), "{text}: {found:?}");
        }
    }

    #[test]
    fn a_store_is_filling_from_four_fifths_of_its_quota_on() {
        let filling = |db_size: u64, quota: i64| {
            of(StatusResponse { db_size: db_size.cast_signed(), db_size_quota: quota, ..status() })
        };
        assert_eq!(filling(79, 100), []);
        let expected = |bytes, bytes_max, is_quota_known| {
            [RegistryTrouble::Filling { member: "a:1".to_owned(), bytes, bytes_max, is_quota_known }]
        };
        assert_eq!(filling(80, 100), expected(80, 100, true));
        let large = QUOTA_DEFAULT / 100 * 81;
        assert_eq!(filling(large, 0), expected(large, QUOTA_DEFAULT, false));
    }
}

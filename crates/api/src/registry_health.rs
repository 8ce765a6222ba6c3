//! What is wrong with the registry itself, as problems of the cluster.

use base::units::ByteSize;
use health::codes::Code;
use health::problem::Problem;
use registry::RegistryTrouble;

/// The problem that a trouble is.
#[must_use]
pub fn problem(trouble: &RegistryTrouble) -> Problem {
    match trouble {
        RegistryTrouble::Full { member } => Problem::new(
            Code::RegistryFull,
            format!("the registry is full: the etcd at {member} has raised the alarm NOSPACE"),
            "volumes are served as they are, but nothing can change: who fails is not replaced, and nothing can be attached",
            "give it room with `etcdctl defrag` on each member, or a larger --quota-backend-bytes; then `etcdctl alarm disarm`",
        ),
        RegistryTrouble::Filling { member, bytes, bytes_max, is_quota_known } => {
            let (bytes, bytes_max) = (ByteSize(*bytes), ByteSize(*bytes_max));
            let quota =
                if *is_quota_known { "its quota" } else { "the quota that etcd has unless told otherwise" };
            Problem::new(
                Code::RegistryFilling,
                format!(
                    "the registry fills up: the store of the etcd at {member} has {bytes} of {bytes_max}, {quota}"
                ),
                "none yet; when the quota is used up, nothing can change",
                "`etcdctl defrag` on each member, one after the other; if it grows again, give it a larger \
                 --quota-backend-bytes",
            )
        }
        RegistryTrouble::MemberDown { member, reason } => Problem::new(
            Code::RegistryMemberDown,
            format!("the member of the registry at {member} is down: {reason}"),
            "none while a majority of the members is left; without one nothing can change",
            "start that etcd again, or replace it: `etcdctl member remove`, `etcdctl member add`; if it is gone for good, \
             take it out of `registry` in millpond.toml",
        ),
        RegistryTrouble::Outdated { member, version } => Problem::new(
            Code::RegistryOutdated,
            format!(
                "the member of the registry at {member} is etcd {version}, and 3.4 is the oldest that is supported"
            ),
            "what was tested are 3.4 and later; older ones may answer otherwise",
            "upgrade it, one member after the other",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use health::codes::Level;
    use std::collections::BTreeSet;

    #[test]
    fn each_trouble_is_a_problem_that_names_the_member() {
        let member = || "a:2379".to_owned();
        let mut found = BTreeSet::new();
        for (trouble, code, level) in [
            (RegistryTrouble::Full { member: member() }, Code::RegistryFull, Level::Error),
            (
                RegistryTrouble::Filling { member: member(), bytes: 8, bytes_max: 9, is_quota_known: true },
                Code::RegistryFilling,
                Level::Warning,
            ),
            (
                RegistryTrouble::MemberDown { member: member(), reason: "it is gone".into() },
                Code::RegistryMemberDown,
                Level::Warning,
            ),
            (
                RegistryTrouble::Outdated { member: member(), version: "3.3.1".into() },
                Code::RegistryOutdated,
                Level::Warning,
            ),
        ] {
            let problem = problem(&trouble);
            assert_eq!((problem.code, problem.level), (code, level));
            assert!(problem.what.contains("a:2379") && !problem.consequence.is_empty(), "{problem:?}");
            found.insert(code);
        }
        let is_of_it = |code: &Code| code.name().starts_with("REGISTRY_");
        assert_eq!(found, Code::ALL.into_iter().filter(is_of_it).collect());
    }
}

//! Where the members of etcd are: those that were named, and those that they name themselves. So members can be replaced one
//! by one under processes that run; what was named needs only one that is there when a process starts.

use super::EtcdOptions;
use super::messages::{Member, MemberListResponse};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// Members that are taken in: more than any etcd has.
const MEMBERS_MAX: usize = 32;

/// The members that etcd named last.
#[derive(Debug, Default)]
pub(super) struct Members(Mutex<Vec<String>>);

impl Members {
    /// Takes over what a member says of all of them.
    pub(super) fn take(&self, answer: &MemberListResponse, options: &EtcdOptions) {
        let serving = answer.members.iter().filter(|member| !member.is_learner);
        let found: Vec<String> =
            serving.filter_map(|member| endpoint_of(member, options)).take(MEMBERS_MAX).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// Where to look for a member, those first that were named.
    pub(super) fn endpoints(&self, options: &EtcdOptions) -> Vec<String> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others = found.iter().filter(|endpoint| !options.endpoints.contains(endpoint));
        options.endpoints.iter().chain(others).cloned().collect()
    }
}

/// Where a member is reached as the others are.
fn endpoint_of(member: &Member, options: &EtcdOptions) -> Option<String> {
    let scheme = if options.tls.is_some() { "https://" } else { "http://" };
    let endpoints = member.client_urls.iter().filter_map(|url| url.strip_prefix(scheme));
    let endpoints = endpoints.map(|endpoint| endpoint.trim_end_matches('/'));
    // What a member that was not told better says of itself means another machine here.
    let all_are_local = options.endpoints.iter().all(|endpoint| is_local(endpoint));
    let mut usable = endpoints.filter(|endpoint| all_are_local || !is_local(endpoint));
    usable.find(|endpoint| options.endpoint(endpoint).is_ok()).map(str::to_owned)
}

/// Whether an endpoint means whichever machine it is used on.
fn is_local(endpoint: &str) -> bool {
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or(host == "localhost", |address| address.is_loopback() || address.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(urls: &[&str]) -> Member {
        Member { client_urls: urls.iter().map(|url| (*url).to_owned()).collect(), is_learner: false }
    }

    fn endpoints(url: &str, members: Vec<Member>) -> Vec<String> {
        let options: EtcdOptions = url.parse().expect("it is a URL");
        let known = Members::default();
        known.take(&MemberListResponse { header: None, members }, &options);
        known.endpoints(&options)
    }

    #[test]
    fn members_that_were_not_named_come_behind_those_that_were() {
        let members = vec![
            member(&["http://10.0.0.2:2379/"]),
            member(&["https://10.0.0.9:2379", "http://10.0.0.3:2379"]),
            Member { is_learner: true, ..member(&["http://10.0.0.4:2379"]) },
            member(&[]),
        ];
        assert_eq!(
            endpoints("etcd://10.0.0.1,10.0.0.2", members),
            ["10.0.0.1:2379", "10.0.0.2:2379", "10.0.0.3:2379"]
        );
    }

    #[test]
    fn what_means_another_machine_elsewhere_is_taken_only_where_all_are_of_this_one() {
        let said = || {
            let local = ["http://localhost:2379", "http://0.0.0.0:2379", "http://[::1]:2379"];
            local.map(|url| member(&[url])).to_vec()
        };
        assert_eq!(endpoints("etcd://10.0.0.1", said()), ["10.0.0.1:2379"]);
        assert_eq!(endpoints("etcd://127.0.0.1", said()).len(), 4);
    }
}

//! One port on several addresses of this machine: a node may be reached over IPv4 and IPv6, or on several networks.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::task::Poll;
use tokio::net::{TcpListener, TcpStream};

/// How often another port is tried because one is not free on all addresses.
const ATTEMPTS_MAX: usize = 64;

/// Why there is no port, and at which address.
#[derive(Debug)]
pub(crate) struct ListenError {
    pub(crate) address: IpAddr,
    pub(crate) source: io::Error,
}

/// Listeners on one port of several addresses.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// Never empty; the first is at the address that is preferred.
    all: Vec<TcpListener>,
    /// Whose turn it is: who floods one address does not keep out those who come to another.
    next: usize,
    address: SocketAddr,
}

impl Listeners {
    /// Listens on a port that is free on all of these addresses.
    ///
    /// # Panics
    /// Without an address, or outside a tokio runtime.
    pub(crate) fn on_free_port(
        addresses: &[IpAddr],
        bind: impl Fn(SocketAddr) -> io::Result<TcpListener>,
    ) -> Result<Listeners, ListenError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match Listeners::on_port(addresses, 0, &bind) {
                // Another program has it on one of the others. Which ports are free on all, nobody can be asked.
                Err(error)
                    if error.source.kind() == ErrorKind::AddrInUse
                        && addresses.len() > 1
                        && attempts < ATTEMPTS_MAX => {}
                listening => return listening,
            }
        }
    }

    /// Listens on that port of all of these addresses; on any that is free at the first if it is 0.
    ///
    /// # Panics
    /// Without an address, or outside a tokio runtime.
    pub(crate) fn on_port(
        addresses: &[IpAddr],
        port: u16,
        bind: impl Fn(SocketAddr) -> io::Result<TcpListener>,
    ) -> Result<Listeners, ListenError> {
        let mut all: Vec<TcpListener> = Vec::new();
        let mut port = port;
        for &address in addresses {
            let failed = |source| ListenError { address, source };
            let listener = bind((address, port).into()).map_err(failed)?;
            port = listener.local_addr().map_err(failed)?.port();
            all.push(listener);
        }
        let first = *addresses.first().expect("whoever listens does so somewhere");
        Ok(Listeners { all, next: 0, address: (first, port).into() })
    }

    /// Where it is, at the address that is preferred.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next who connects, to whichever address. Dropping the future loses nobody.
    pub(crate) async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let (all, next) = (&self.all, &mut self.next);
        poll_fn(|context| {
            for step in 0..all.len() {
                let index = (*next + step) % all.len();
                if let Poll::Ready(accepted) = all[index].poll_accept(context) {
                    *next = index + 1;
                    return Poll::Ready(accepted);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Listens at one address, with the default queue.
///
/// # Panics
/// Outside a tokio runtime.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

impl From<ListenError> for io::Error {
    fn from(error: ListenError) -> io::Error {
        io::Error::new(error.source.kind(), format!("{}: {}", error.address, error.source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::time::Duration;

    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    const FIRST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    /// Where no other program of this machine takes a port meanwhile.
    const QUIET: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));

    #[tokio::test]
    async fn one_port_is_served_on_every_address_and_none_keeps_out_those_of_another() {
        let mut addresses = vec![FIRST, OTHER];
        // Not every machine has it.
        if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            addresses.push(Ipv6Addr::LOCALHOST.into());
        }
        let mut listeners = Listeners::on_free_port(&addresses, bind).unwrap();
        let port = listeners.address().port();
        assert_eq!(listeners.address().ip(), FIRST);
        let mut clients = Vec::new();
        for address in addresses.iter().flat_map(|address| [*address; 3]) {
            clients.push(TcpStream::connect((address, port)).await.unwrap());
        }
        let mut by_address: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for turn in 1..=clients.len() {
            let accepted = tokio::time::timeout(Duration::from_secs(10), listeners.accept()).await;
            let (stream, _) = accepted.expect("all have connected").unwrap();
            *by_address.entry(stream.local_addr().unwrap().ip()).or_default() += 1;
            assert!(by_address.values().all(|count| *count <= turn.div_ceil(addresses.len())));
        }
        assert_eq!(by_address.len(), addresses.len());
    }

    #[tokio::test]
    async fn a_port_that_is_taken_at_one_address_is_told_of_and_passed_over_where_any_will_do() {
        let taken = std::net::TcpListener::bind((OTHER, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let refused = Listeners::on_port(&[QUIET, OTHER], port, bind).unwrap_err();
        assert_eq!((refused.address, refused.source.kind()), (OTHER, ErrorKind::AddrInUse));
        assert!(io::Error::from(refused).to_string().starts_with("127.0.0.2: "));
        // The port that is free at the first address is just the one that is taken at the second, at first.
        let attempts = std::cell::Cell::new(0);
        let unlucky = |address: SocketAddr| {
            let is_first = address.port() == 0 && attempts.replace(attempts.get() + 1) == 0;
            bind(if is_first { (QUIET, port).into() } else { address })
        };
        let listeners = Listeners::on_free_port(&[QUIET, OTHER], unlucky).unwrap();
        assert_ne!(listeners.address().port(), port);
        let nowhere: IpAddr = Ipv4Addr::new(192, 0, 2, 1).into();
        let refused = Listeners::on_free_port(&[QUIET, nowhere], bind).unwrap_err();
        assert_eq!(refused.address, nowhere);
    }

    #[tokio::test]
    async fn of_two_addresses_each_has_every_other_turn() {
        let mut listeners = Listeners::on_free_port(&[FIRST, OTHER], bind).unwrap();
        let port = listeners.address().port();
        let mut clients = Vec::new();
        for address in [FIRST, FIRST, FIRST, OTHER, OTHER, OTHER] {
            clients.push(TcpStream::connect((address, port)).await.unwrap());
        }
        let mut turns = Vec::new();
        for _ in &clients {
            let accepted = tokio::time::timeout(Duration::from_secs(10), listeners.accept()).await;
            let (stream, _) = accepted.expect("all have connected").unwrap();
            turns.push(stream.local_addr().unwrap().ip());
        }
        assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "{turns:?}");
    }

    #[test]
    fn where_no_port_is_free_trying_ends_and_does_not_begin_where_another_would_be_no_better() {
        for (addresses, expected) in [(&[QUIET][..], 1), (&[QUIET, OTHER][..], ATTEMPTS_MAX)] {
            let attempts = std::cell::Cell::new(0);
            let taken = |_: SocketAddr| -> io::Result<TcpListener> {
                attempts.set(attempts.get() + 1);
                Err(ErrorKind::AddrInUse.into())
            };
            let refused = Listeners::on_free_port(addresses, taken).unwrap_err();
            assert_eq!((refused.address, attempts.get()), (QUIET, expected));
        }
    }
}

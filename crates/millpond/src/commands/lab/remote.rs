//! Agents over TCP: `lab agent --listen` on the host that makes load, `lab reach` on the one that measures. Both have the same key,
//! which each proves to have, and all that is said is encrypted. Whoever has it can overwrite what that host's user can.

use crate::host::access;
use anyhow::{Context, bail};
use auth::{Channel, Identity, SecretKey, reach as connect};
use base::Encryption;
use lab::testbed::keeper::FAREWELL;
use std::io::{BufRead, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::sleep;

/// Agents that a host has at the same time: more than a plan has clients.
const AGENTS_MAX: usize = 512;
/// How long a peer that vanished is believed to be there.
const SILENCE_LIMIT: Duration = Duration::from_secs(6);
/// Between two tries to accept where the system has nothing left for a connection.
const PAUSE: Duration = Duration::from_millis(100);
const BUFFER_BYTES: usize = 64 << 10;
/// Lines that may wait to be sent.
const ORDERS_MAX: usize = 16;

/// Serves an agent to each connection from whoever has the key in a file, which is made if it is missing.
pub fn listen(address: &str, key: &Path) -> anyhow::Result<()> {
    let key = SecretKey::load_or_generate(key, "an agent of the lab")?;
    let identity = Arc::new(Identity::new(&key));
    access::block_on(async {
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        eprintln!(
            "agents are served on {}, to whoever has the key of {}",
            listener.local_addr()?,
            key.public()
        );
        let places = Arc::new(Semaphore::new(AGENTS_MAX));
        loop {
            let place = places.clone().acquire_owned().await?;
            let Ok((stream, from)) = listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
            let identity = identity.clone();
            tokio::spawn(async move {
                if let Err(error) = serve(stream, &identity).await {
                    eprintln!("{from}: {error:#}");
                }
                drop(place);
            });
        }
    })
}

async fn serve(stream: TcpStream, identity: &Identity) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let own = identity.public();
    let authorize = |key| match key == own {
        true => Ok(()),
        false => Err("it has another key; copy the file that this agent was given with --key".to_owned()),
    };
    let (channel, ()) = identity.accept(stream, Encryption::On, authorize).await?;
    channel.end_unless_acknowledged_within(SILENCE_LIMIT)?;
    let (mut hears, mut says) = split(channel.into_stream());
    let mut agent = Command::new("/proc/self/exe");
    agent.args(["lab", "agent"]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut agent = agent.spawn().context("an agent cannot be started")?;
    let (input, output) = (agent.stdin.take(), agent.stdout.take());
    let (mut input, mut output) = (input.context("it has no input")?, output.context("it has no output")?);
    let said = async {
        let _ = copy(&mut output, &mut says).await;
        let _ = says.shutdown().await;
    };
    let heard = async {
        let _ = copy(&mut hears, &mut input).await;
        // An agent whose order-giver is gone ends by itself, unless its target does not answer.
        drop(input);
        sleep(FAREWELL).await;
    };
    tokio::select! {
        () = said => {}
        () = heard => {}
    }
    // One that has ended is not there to be killed.
    let _ = agent.start_kill();
    agent.wait().await.context("the agent is lost")?;
    Ok(())
}

/// Is what an agent at that address would be here: what is said to it on the standard input, what it says on the standard output.
pub fn reach(address: &str, key: &Path) -> anyhow::Result<()> {
    let identity = Identity::new(&SecretKey::load(key)?);
    let addresses =
        address.to_socket_addrs().with_context(|| format!("{address} is no address; write HOST:PORT"))?;
    access::block_on(async {
        let channel = first_of(addresses, &identity).await?;
        channel.end_unless_acknowledged_within(SILENCE_LIMIT)?;
        let (mut hears, mut says) = split(channel.into_stream());
        let mut orders = orders()?;
        let said = async {
            while let Some(line) = orders.recv().await {
                says.write_all(&line).await?;
            }
            // Whoever gives orders has gone; the agent hears of it, and says what it has still to say.
            says.shutdown().await
        };
        let heard = async {
            let mut buffer = vec![0; BUFFER_BYTES];
            loop {
                match hears.read(&mut buffer).await? {
                    0 => return Ok(()),
                    // Whoever measures reads at any time.
                    count => std::io::stdout().write_all(&buffer[..count])?,
                }
                std::io::stdout().flush()?;
            }
        };
        tokio::select! {
            heard = heard => { let heard: std::io::Result<()> = heard; heard.context("the connection to the agent broke") }
            Err(error) = said => Err(error).context("the connection to the agent broke"),
        }
    })
}

/// What comes on the standard input.
fn orders() -> anyhow::Result<Receiver<Vec<u8>>> {
    let (sender, orders) = channel(ORDERS_MAX);
    let read = move || {
        let mut input = std::io::stdin().lock();
        loop {
            let mut line = Vec::new();
            match input.read_until(b'\n', &mut line) {
                Ok(count) if count > 0 && sender.blocking_send(line).is_ok() => {}
                _ => return,
            }
        }
    };
    std::thread::Builder::new().name("orders".to_owned()).spawn(read).context("cannot start a thread")?;
    Ok(orders)
}

async fn first_of(
    addresses: impl Iterator<Item = SocketAddr>,
    identity: &Identity,
) -> anyhow::Result<Channel> {
    let mut last = "it has no address".to_owned();
    for address in addresses {
        match connect(identity, identity.public(), address, Encryption::On).await {
            Ok(channel) => return Ok(channel),
            Err(error) => last = error,
        }
    }
    bail!("{last}; there `millpond lab agent --listen` must run, with the same key")
}

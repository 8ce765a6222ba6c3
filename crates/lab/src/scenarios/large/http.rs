//! Questions to a process of a node, over HTTP on the loopback interface.

use anyhow::{Context, bail};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The whole answer, with its head. Any but 200 is an error.
pub fn get(address: SocketAddr, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if !answer.starts_with("HTTP/1.1 200 ") {
        bail!("{address} answered {}", answer.chars().take(200).collect::<String>());
    }
    Ok(answer)
}

/// What it says.
pub fn body(address: SocketAddr, path: &str) -> anyhow::Result<String> {
    let answer = get(address, path)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    Ok(body.to_owned())
}

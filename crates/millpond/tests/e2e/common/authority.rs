//! An authority that issues certificates, by `openssl`.

use super::time_of_day::at_another_time;
use super::{path, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with `ca.pem`, and for each certificate `NAME.pem` and `NAME.key`.
pub struct Authority {
    folder: PathBuf,
}

impl Authority {
    /// Makes one.
    pub fn new(folder: &Path) -> Authority {
        std::fs::create_dir(folder).expect("a folder can be made");
        let this = Authority { folder: folder.to_owned() };
        let make = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"];
        let (key, certificate) = (this.file("ca.key"), this.file("ca.pem"));
        let which =
            ["-subj", "/CN=authority", "-days", "30", "-keyout", path(&key), "-out", path(&certificate)];
        run("openssl", &[&make[..], &which].concat());
        this
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// One of its files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Issues a certificate for these addresses and for clients, good for 30 days from then, as in [`at_another_time`].
    pub fn issue(&self, name: &str, addresses: &[String], from: &str) {
        let file = |extension: &str| path(&self.file(&format!("{name}.{extension}"))).to_owned();
        let (key, request, extensions, certificate) = (file("key"), file("csr"), file("ext"), file("pem"));
        let addresses: Vec<String> = addresses.iter().map(|address| format!("IP:{address}")).collect();
        let names = if addresses.is_empty() { format!("DNS:{name}") } else { addresses.join(",") };
        std::fs::write(
            &extensions,
            format!("subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n"),
        )
        .expect("a file can be written");
        let make = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"];
        let which = ["-subj", &format!("/CN={name}"), "-keyout", &key, "-out", &request];
        run("openssl", &[&make[..], &which].concat());
        let (ca, ca_key) = (self.file("ca.pem"), self.file("ca.key"));
        let sign = ["x509", "-req", "-days", "30", "-CA", path(&ca), "-CAkey", path(&ca_key)];
        let which = ["-in", &request, "-extfile", &extensions, "-CAcreateserial", "-out", &certificate];
        let signed = Command::new("openssl").args(sign).args(which).envs(at_another_time(from)).output();
        let signed = signed.expect("openssl is there; `make deps` installs it");
        assert!(signed.status.success(), "{}", String::from_utf8_lossy(&signed.stderr));
    }
}

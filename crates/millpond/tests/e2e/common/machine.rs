//! A virtual machine with Debian's kernel, in software emulation, which runs a script and tells what came of it.

use super::{Process, path, run, wait_longer};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testkit::prerequisites::installed;

/// What makes and runs one.
const PROGRAMS: [&str; 5] = ["qemu-system-x86_64", "busybox", "cpio", "modprobe", "ldd"];
/// How long a guest may take to boot, or for what it was told. It has a tenth of this machine's speed, and others run beside it.
const PATIENCE: Duration = Duration::from_secs(240);
/// Memory of a guest, in MiB.
const MEMORY_MIB: u32 = 384;

/// Whether guests can be had here; says so where not.
pub fn has_guests(test: &str) -> bool {
    // They are in directories that not everybody's path has.
    installed(test, &PROGRAMS)
}

/// A kernel, and a file system in memory with a script for it.
pub struct Image {
    kernel: PathBuf,
    initrd: PathBuf,
}

impl Image {
    /// With programs and files of this machine, and with modules of the kernel, which are loaded.
    pub fn new(scratch: &Path, script: &str, programs: &[&str], files: &[&Path], modules: &[&str]) -> Image {
        let directory = scratch.join("guest");
        let tree = directory.join("tree");
        for part in ["bin", "proc", "sys", "dev", "etc", "tmp", "run", "mnt", "modules"] {
            std::fs::create_dir_all(tree.join(part)).unwrap();
        }
        let finder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/src/challenges/guest.sh");
        let found = run("bash", &[path(&finder), "kernel", "--dir", path(&directory)]);
        let [root, version, kernel] = found.lines().collect::<Vec<_>>()[..] else { panic!("{found}") };
        let copy = |file: &Path| {
            let to = tree.join(file.strip_prefix("/").unwrap());
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(file, to).unwrap();
        };
        for program in programs.iter().chain(&["busybox"]) {
            let found = run("sh", &["-c", &format!("command -v {program}")]);
            let found = PathBuf::from(found.trim());
            std::fs::copy(&found, tree.join("bin").join(program)).unwrap();
            // Of a static one there are none.
            let libraries = Command::new("ldd").arg(&found).output().unwrap();
            let libraries = String::from_utf8(libraries.stdout).unwrap();
            libraries
                .split_whitespace()
                .filter(|word| word.starts_with('/'))
                .for_each(|file| copy(Path::new(file)));
        }
        files.iter().for_each(|file| copy(file));
        let mut order = String::new();
        for module in ["virtio_pci", "virtio_net"].iter().chain(modules) {
            let needs = run("modprobe", &["-d", root, "-S", version, "--show-depends", module]);
            for line in needs.lines() {
                let Some(file) = line.strip_prefix("insmod ") else { continue };
                // Behind it may stand what this machine tells the module.
                let Some(file) = file.split_whitespace().next().map(Path::new) else { continue };
                let name = file.file_name().unwrap();
                if !tree.join("modules").join(name).exists() {
                    std::fs::copy(file, tree.join("modules").join(name)).unwrap();
                    writeln!(order, "{}", name.to_str().unwrap()).unwrap();
                }
            }
        }
        std::fs::write(tree.join("modules/order"), order).unwrap();
        std::fs::write(tree.join("script"), script).unwrap();
        std::fs::write(tree.join("init"), INIT).unwrap();
        let initrd = directory.join("initrd");
        let pack = format!(
            "cd {} && chmod +x init && find . | cpio -o -H newc --quiet > {}",
            path(&tree),
            path(&initrd)
        );
        run("sh", &["-c", &pack]);
        std::fs::remove_dir_all(&tree).unwrap();
        Image { kernel: kernel.into(), initrd }
    }
}

/// Has `/dev/vda` written to and verified on four parts of 32 MiB, for so many seconds. `GUEST-WRITES` is said before.
pub fn writes(seconds: u64) -> String {
    format!(
        "until [ -b /dev/vda ]; do sleep 0.1; done; echo GUEST-WRITES
         fio --name=part --filename=/dev/vda --numjobs=4 --size=32m --offset_increment=32m --direct=1 --ioengine=io_uring \
         --iodepth=8 --rw=randrw --bsrange=512-64k --verify=crc32c --verify_fatal=1 --verify_backlog=64 \
         --time_based --runtime={seconds} --group_reporting 2>&1 | grep -E 'err=|IOPS=|verify' > /tmp/said
         cat /tmp/said; grep -q 'err= 0' /tmp/said\n"
    )
}

/// A guest that does that and ends.
pub fn image_that_writes(scratch: &Path, seconds: u64) -> Image {
    Image::new(scratch, &writes(seconds), &["fio"], &[], &["virtio_blk"])
}

const INIT: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm
while read -r module; do insmod /modules/$module; done < /modules/order
ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
echo GUEST-BEGIN; sh /script; echo GUEST-END $?; poweroff -f
";

/// A running one, which ends with the test.
pub struct Guest {
    process: Process,
    console: PathBuf,
    control: PathBuf,
}

impl Guest {
    /// Starts one with these further arguments. Its memory is shared with whoever serves its disks; this machine's loopback is 10.0.2.2.
    pub fn start(image: &Image, scratch: &Path, name: &str, arguments: &[&str]) -> Guest {
        Guest::start_by(Command::new("qemu-system-x86_64"), image, scratch, name, arguments)
    }

    /// The same by a command that has more in its environment.
    pub fn start_by(
        mut qemu: Command,
        image: &Image,
        scratch: &Path,
        name: &str,
        arguments: &[&str],
    ) -> Guest {
        let place = |what: &str| scratch.join(format!("{name}.{what}"));
        let (console, control) = (place("console"), place("qmp"));
        let memory = format!("{MEMORY_MIB}M");
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", &memory]);
        qemu.args(["-object", &format!("memory-backend-memfd,id=mem,size={memory},share=on")]);
        qemu.args(["-machine", "memory-backend=mem", "-nodefaults", "-display", "none", "-no-reboot"]);
        qemu.args(["-kernel", path(&image.kernel), "-initrd", path(&image.initrd)]);
        qemu.args(["-append", "console=ttyS0 panic=-1 quiet loglevel=4"]);
        qemu.args(["-serial", &format!("file:{}", path(&console))]);
        qemu.args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]);
        qemu.args(["-qmp", &format!("unix:{},server=on,wait=off", path(&control))]).args(arguments);
        Guest { process: Process::start(&mut qemu, &place("log")), console, control }
    }

    /// What its console shows.
    pub fn console(&self) -> String {
        let bytes = std::fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// Waits until its console shows something.
    #[track_caller]
    pub fn wait_for(&mut self, what: &str) {
        wait_longer(PATIENCE, what, || {
            assert!(
                self.console().contains(what) || self.process.runs(),
                "{}{}",
                self.console(),
                self.process.said()
            );
            self.console().contains(what)
        });
    }

    /// Waits for the end of its script, which ends well.
    #[track_caller]
    pub fn ends_well(&mut self) -> String {
        self.wait_for("GUEST-END ");
        let console = self.console();
        assert!(console.contains("GUEST-END 0\n"), "{console}");
        console
    }

    /// Waits a little, while it runs.
    #[track_caller]
    pub fn wait_a_while(&mut self) {
        assert!(self.process.runs() || self.has_ended(), "{}{}", self.console(), self.process.said());
        std::thread::sleep(Duration::from_millis(100));
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Whether its console shows that its script has ended.
    pub fn has_ended(&self) -> bool {
        self.console().contains("GUEST-END ")
    }

    /// Has QEMU do something, by its monitor.
    #[track_caller]
    pub fn does(&self, command: &str, arguments: &Value) -> Value {
        let stream = UnixStream::connect(&self.control).unwrap();
        let (mut to, from) = (stream.try_clone().unwrap(), BufReader::new(stream));
        let mut lines = from.lines();
        let mut answer = |what: Option<Value>| -> Value {
            if let Some(what) = what {
                writeln!(to, "{what}").unwrap();
            }
            loop {
                let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
                if line.get("event").is_none() {
                    return line;
                }
            }
        };
        answer(None);
        answer(Some(json!({"execute": "qmp_capabilities"})));
        let mut said = answer(Some(json!({"execute": command, "arguments": arguments})));
        assert!(said.get("error").is_none(), "{command}: {said}");
        said["return"].take()
    }

    /// Moves it to another that waits for it at a socket.
    pub fn moves_to(&self, socket: &Path) {
        self.does("migrate", &json!({"uri": format!("unix:{}", path(socket))}));
        wait_longer(PATIENCE, "it has moved", || {
            let status = self.does("query-migrate", &json!({}));
            let now = status["status"].as_str().unwrap_or_default().to_owned();
            assert!(now != "failed" && now != "cancelled", "{status}");
            now == "completed"
        });
    }
}

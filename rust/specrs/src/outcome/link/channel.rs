//! One side's end of the messages between target and drafter.

use std::io::{ErrorKind as Io, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::ring::Ring;
use super::wire::Message;
use crate::error::{Error, ErrorKind, Result};

/// How long a writer waits for room in the ring.
const ROOM: Duration = Duration::from_secs(5);
/// Looks at the counter between two offers of the core to other threads.
const LOOKS: u32 = 64;

/// Writes to one ring, reads from the other, and sleeps on a socket when there is nothing to read.
///
/// A processor that fell asleep takes a good part of a millisecond to wake up, so a reader first watches the counter in
/// shared memory. Only a reader that sleeps is rung for, by a byte on the socket: it says so in the ring before it looks
/// a last time, and a writer looks after it has written, so that one of the two always sees the other. The socket also
/// tells when the other process is gone, however it ended.
#[derive(Debug)]
pub struct Channel {
    inbox: Ring,
    outbox: Ring,
    bell: UnixStream,
}

fn gone(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Lost, format!("the process at the other end is gone ({error})"))
}

impl Channel {
    /// An end that reads `inbox` and writes `outbox`; `bell` is a connected stream socket.
    pub fn new(inbox: Ring, outbox: Ring, bell: UnixStream) -> Self {
        Self { inbox, outbox, bell }
    }

    /// Whether a message waits.
    pub fn has_message(&self) -> bool {
        self.inbox.has_message()
    }

    /// Writes a message made of `parts` and wakes the other side if it sleeps.
    ///
    /// # Errors
    /// As [`Ring::write`]; of kind `Lost` if the other side sleeps and is gone.
    pub fn send(&self, parts: &[&[u8]]) -> Result<()> {
        self.outbox.write(parts, ROOM)?;
        if self.outbox.asleep().swap(0, Ordering::SeqCst) == 1 {
            (&self.bell).write_all(b"!").map_err(|error| gone(&error))?;
        }
        Ok(())
    }

    /// Watches for a message for `busy`, without sleeping.
    pub fn watch(&self, busy: Duration) -> bool {
        let started = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if self.has_message() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if started.elapsed() >= busy {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// Sleeps until a message comes, `timeout` is over, or a signal came; says whether a message waits.
    ///
    /// # Errors
    /// Of kind `Lost` if the other process is gone.
    pub fn sleep(&self, timeout: Duration) -> Result<bool> {
        let asleep = self.inbox.asleep();
        asleep.store(1, Ordering::SeqCst);
        let rung = !self.has_message() && self.ring_within(Some(timeout))?;
        if !rung && asleep.swap(0, Ordering::SeqCst) == 0 {
            while !self.ring_within(None)? {} // its byte is on the way
        }
        Ok(self.has_message())
    }

    /// Takes one byte off the socket; false if none came in time.
    fn ring_within(&self, timeout: Option<Duration>) -> Result<bool> {
        self.bell.set_read_timeout(timeout.map(|t| t.max(Duration::from_millis(1))))?;
        match (&self.bell).read(&mut [0]) {
            Ok(0) => Err(gone(&"its socket is closed")),
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), Io::WouldBlock | Io::TimedOut | Io::Interrupted) => Ok(false),
            Err(error) => Err(gone(&error)),
        }
    }

    /// Reads the oldest message; None if there is none.
    ///
    /// # Errors
    /// Of kind `Lost` if the message is foreign, of another version, or cut off.
    pub fn receive(&self) -> Result<Option<Message>> {
        self.inbox.read(Message::decode)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first error")]
mod tests {
    use std::fs::File;

    use super::super::wire;
    use super::*;

    fn pair() -> (Channel, Channel) {
        let file = |name: &str| {
            let path = std::env::temp_dir().join(format!(
                "specrs-channel-{}-{name}-{:?}",
                std::process::id(),
                std::thread::current().id()
            ));
            let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            file.set_len(4096).unwrap();
            file
        };
        let (one, two) = (file("one"), file("two"));
        let (here, there) = UnixStream::pair().unwrap();
        let ring = |file: &File| Ring::new(file).unwrap();
        (Channel::new(ring(&one), ring(&two), here), Channel::new(ring(&two), ring(&one), there))
    }

    #[test]
    fn messages_arrive_whether_the_reader_watches_or_sleeps() {
        let (here, there) = pair();
        let rounds = 2_000_u64;
        let echo = std::thread::spawn(move || {
            for round in 0..rounds {
                while !there.watch(Duration::from_micros(round % 3 * 20))
                    && !there.sleep(Duration::from_secs(5)).unwrap()
                {}
                let Some(Message::Finish(number)) = there.receive().unwrap() else { panic!("a finish was sent") };
                assert_eq!(number, round);
                there.send(&[&wire::finish(number + 1)]).unwrap();
            }
            there
        });
        for round in 0..rounds {
            here.send(&[&wire::finish(round)]).unwrap();
            while !here.watch(Duration::from_micros(round % 2 * 30)) && !here.sleep(Duration::from_secs(5)).unwrap() {}
            assert_eq!(here.receive().unwrap(), Some(Message::Finish(round + 1)));
        }
        let _still_there = echo.join().unwrap();
        assert!(!here.sleep(Duration::from_millis(2)).unwrap(), "no byte was left over");
    }

    #[test]
    fn the_end_of_the_other_side_is_noticed() {
        let (here, there) = pair();
        assert!(!here.sleep(Duration::from_millis(1)).unwrap());
        there.send(&[&wire::finish(7)]).unwrap();
        drop(there);
        assert!(here.sleep(Duration::from_secs(5)).unwrap(), "what was sent before is read");
        assert_eq!(here.receive().unwrap(), Some(Message::Finish(7)));
        assert_eq!(here.sleep(Duration::from_secs(5)).unwrap_err().kind(), ErrorKind::Lost);
    }
}

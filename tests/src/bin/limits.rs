//! The waits of Rust's standard library that have a limit, beside a thread that sleeps: limits MILLISECONDS
//!
//! Prints for each wait its name, its expected and its measured time in milliseconds.

use std::{
    sync::{Condvar, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

fn takes(name: &str, asked: Duration, wait: impl FnOnce()) {
    let begin = Instant::now();
    wait();
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    println!("{name} {:.3} {:.3}", millis(asked), millis(begin.elapsed()));
}

fn main() {
    let millis = std::env::args().nth(1).and_then(|word| word.parse().ok()).expect("milliseconds");
    let limit = Duration::from_millis(millis);
    thread::spawn(|| {
        loop {
            thread::sleep(Duration::from_secs(1_000_000));
        }
    });
    let (mutex, condition) = (Mutex::new(()), Condvar::new());
    takes("condvar", limit, || {
        let (_guard, result) = condition.wait_timeout(mutex.lock().unwrap(), limit).unwrap();
        assert!(result.timed_out());
    });
    let (sender, receiver) = mpsc::channel();
    takes("channel", limit, || assert!(receiver.recv_timeout(limit).is_err()));
    takes("park", limit, || thread::park_timeout(limit));
    // The other thread sleeps for half of the limit.
    let other = thread::spawn(move || {
        thread::sleep(limit / 2);
        sender.send(()).unwrap();
    });
    takes("sent", limit / 2, || receiver.recv_timeout(limit).unwrap());
    other.join().unwrap();
}

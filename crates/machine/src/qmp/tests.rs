//! Servers that are no QEMU, or one that misbehaves: every call ends, with a reason.

use std::io::{Read, Write};
use std::sync::atomic::Ordering;
use std::thread;

use super::fake::{Fake, GREETING, event, ok};
use super::*;

fn connect(fake: &Fake) -> Result<Qmp, QmpError> {
    Qmp::connect(fake.path(), Stop::default())
}

fn problem<T: std::fmt::Debug>(result: Result<T, QmpError>) -> QmpProblem {
    result.unwrap_err().problem
}

#[test]
fn answers_are_told_from_events_and_counted() {
    let fake = Fake::answering(|name, arguments| match name {
        "stop" => event("STOP") + &ok("{}"),
        "again" => event("RESUME") + &event("STOP") + &event("RESET") + &ok("7"),
        "echo" => ok(&arguments.to_string()),
        "no" => "{\"error\": {\"class\": \"GenericError\", \"desc\": \"not\\nso\"}, \"id\": ID}\n"
            .into(),
        _ => unreachable!(),
    });
    let mut qmp = connect(&fake).unwrap();
    assert_eq!(qmp.run("stop", json!({})).unwrap(), json!({}));
    assert_eq!((qmp.events().stops, qmp.events().resumes), (1, 0));
    assert_eq!(qmp.run("again", json!({})).unwrap(), 7);
    assert_eq!(
        qmp.events(),
        &QmpEvents { stops: 2, resumes: 1, resets: 1, ..QmpEvents::default() }
    );
    assert_eq!(qmp.run("echo", json!({ "a": "ö" })).unwrap(), json!({ "a": "ö" }));
    let refused = qmp.run("no", json!({})).unwrap_err().to_string();
    assert!(refused.ends_with("QEMU refused no: not\nso"), "{refused}");
    let many: Vec<QmpRequest> = (0..200)
        .map(|i| if i % 3 == 0 { ("no", json!({})) } else { ("echo", json!({ "i": i })) })
        .collect();
    let answers = qmp.run_all(&many).unwrap();
    for (i, answer) in answers.iter().enumerate() {
        let expected = (i % 3 != 0).then(|| json!({ "i": i }));
        assert_eq!(answer, &expected);
    }
    assert_eq!(answers.len(), 200);
}

/// A late answer is not mistaken for that of the next command.
#[test]
fn a_late_answer_is_dropped() {
    let fake = Fake::answering(|name, _| match name {
        // Its answer comes with the next one's.
        "slow" => String::new(),
        _ => "{\"return\": \"late\", \"id\": 2}\n".to_owned() + &ok("\"mine\""),
    });
    let mut qmp = connect(&fake).unwrap();
    let slow = qmp.run_until("slow", json!({}), Until::after(Duration::from_millis(30)));
    assert!(matches!(problem(slow), QmpProblem::TimedOut(command) if command == "slow"));
    assert_eq!(qmp.run("next", json!({})).unwrap(), "mine");
}

#[test]
fn non_qmp_answers_are_named() {
    for greeting in ["SSH-2.0-OpenSSH_9.2\n", "{}\n", "[\n", "{\"event\": \"STOP\"}\n"] {
        let fake = Fake::new(move |mut stream| {
            stream.write_all(greeting.as_bytes()).unwrap();
            // Until the client is gone.
            let _ = stream.read(&mut [0; 1]);
        });
        assert!(matches!(problem(connect(&fake)), QmpProblem::Foreign(_)), "{greeting}");
    }
    for answer in [
        "{\"return\": {}, \"id\": 99}\n",
        "{\"return\": {}}\n",
        "{\"return\": {}, \"id\": \"stop\"}\n",
        "{\"id\": ID}\n",
        "{}\n",
        "7\n",
        "{\"return\": {}, \"id\": ID\n",
        "\u{0}\n",
    ] {
        let fake = Fake::answering(move |_, _| answer.to_owned());
        let mut qmp = connect(&fake).unwrap();
        let found = problem(qmp.run("stop", json!({})));
        assert!(matches!(found, QmpProblem::Foreign(_)), "{answer}: {found}");
    }
    let fake = Fake::new(drop);
    assert!(matches!(problem(connect(&fake)), QmpProblem::Closed));
    let fake = Fake::new(|mut stream| stream.write_all(b"{\"QMP\": {}").unwrap());
    assert!(matches!(problem(connect(&fake)), QmpProblem::Closed));
    let nothing = Path::new("/nonexistent/qmp");
    let found = Qmp::connect(nothing, Stop::default());
    assert!(matches!(problem(found), QmpProblem::Connect(_)));
}

/// Sends `text` for ever, after the greeting.
fn endless(text: &'static str) -> Fake {
    Fake::new(move |mut stream| {
        stream.write_all(GREETING.as_bytes()).unwrap();
        stream.write_all(b"{\"return\": {}, \"id\": 1}\n").unwrap();
        let block = text.repeat(1000);
        while stream.write_all(block.as_bytes()).is_ok() {}
    })
}

#[test]
fn a_line_without_an_end_is_not_kept() {
    let fake = endless("{\"a\": [");
    let mut qmp = connect(&fake).unwrap();
    assert!(matches!(problem(qmp.run("stop", json!({}))), QmpProblem::Foreign(_)));
}

/// Each event is an answer in time to nothing; the deadline is that of the command.
#[test]
fn endless_events_end_with_the_command() {
    let fake = endless("{\"event\": \"RTC_CHANGE\"}\n");
    let mut qmp = connect(&fake).unwrap();
    let done = qmp.run_until("stop", json!({}), Until::after(Duration::from_millis(200)));
    assert!(matches!(problem(done), QmpProblem::TimedOut(command) if command == "stop"));
    assert_eq!(qmp.events(), &QmpEvents::default());
}

/// Whatever the server does, a stop request ends the wait, and what undoes something is sent all the same.
#[test]
fn a_stop_request_ends_every_wait() {
    let servers: [fn() -> Fake; 4] = [
        || endless("{\"event\": \"RTC_CHANGE\"}\n"),
        || {
            Fake::new(|mut stream| {
                stream.write_all(GREETING.as_bytes()).unwrap();
                stream.write_all(b"{\"return\": {}, \"id\": 1}\n{\"return\"").unwrap();
                let mut rest = String::new();
                let _ = stream.read_to_string(&mut rest);
            })
        },
        || Fake::answering(|_, _| String::new()),
        || Fake::answering(|_, _| event("STOP")),
    ];
    for server in servers {
        let fake = server();
        let stop = Stop::default();
        let mut qmp = Qmp::connect(fake.path(), stop.clone()).unwrap();
        thread::scope(|scope| {
            let run = scope.spawn(|| {
                let stopped = problem(qmp.run("stop", json!({})));
                let all = problem(qmp.run_all(&[("stop", json!({}))]));
                let undone = problem(qmp.run_anyway("cont", json!({})));
                (stopped, all, undone)
            });
            stop.flag().store(true, Ordering::Relaxed);
            let (stopped, all, undone) = run.join().unwrap();
            assert!(matches!(stopped, QmpProblem::Stopped), "{stopped}");
            assert!(matches!(all, QmpProblem::Stopped), "{all}");
            // After half a line the next one is no JSON either.
            assert!(matches!(undone, QmpProblem::TimedOut(_) | QmpProblem::Foreign(_)), "{undone}");
        });
    }
}

#[test]
fn a_command_that_undoes_something_is_run_though_a_stop_is_requested() {
    let mut answers = (0..20).map(|_| {
        let fake = Fake::answering(|_, _| event("RESUME") + &ok("{}"));
        let stop = Stop::default();
        let mut qmp = Qmp::connect(fake.path(), stop.clone()).unwrap();
        stop.flag().store(true, Ordering::Relaxed);
        assert!(matches!(problem(qmp.run("stop", json!({}))), QmpProblem::Stopped));
        match qmp.run_anyway("cont", json!({})) {
            Ok(_) => assert_eq!(qmp.events().resumes, 1),
            // After a stop request it has a second, for which a busy computer may stand still.
            Err(error) => {
                assert!(matches!(error.problem, QmpProblem::TimedOut(_)), "{error}");
                return false;
            }
        }
        true
    });
    assert!(answers.any(|answered| answered), "`cont` is never answered");
}

/// No accept(): the system would let a client wait for ever.
#[test]
fn connecting_ends_too() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("qmp");
    let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let listener = listener.unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let mut queued = Vec::new();
    let full = loop {
        match super::connect(&socket, Until::after(Duration::from_millis(50))) {
            Ok(stream) => queued.push(stream),
            Err(problem) => break problem,
        }
        assert!(queued.len() < 100);
    };
    assert!(matches!(full, QmpProblem::Silent(_)), "{full}");
    let stop = Stop::default();
    stop.flag().store(true, Ordering::Relaxed);
    let done = Qmp::connect(&socket, stop);
    assert!(matches!(problem(done), QmpProblem::Stopped));
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! The example in docs/protocol.md has the bytes that the crate reads and writes.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use spawnfd::Output;
use spawnfd::internal::{RemoteCall, Stored};
use spawnfd::job::Stop;
use spawnfd_remote::frame::{Decoder, Frame, Kind, MARK, Marker};
use spawnfd_remote::message::{CallMessage, FarHello, NearHello, ResultMessage, VERSION, pack, unpack};

use crate::raw::{Client, frame, result};

/// The bytes of one direction in the page's dump: the lines that begin with `sign`.
fn dumped(page: &str, sign: &str) -> Vec<u8> {
    let lines = page.lines().filter_map(|line| line.strip_prefix(sign));
    let words = lines.flat_map(|line| line.split('|').next().unwrap_or_default().split_whitespace());
    words.map(|word| u8::from_str_radix(word, 16).expect("a byte in hexadecimal")).collect()
}

/// The dump of a frame.
fn dump(text: &mut String, sign: &str, name: &str, bytes: &[u8]) {
    writeln!(text, "# {name}").expect("a string");
    for line in bytes.chunks(16) {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let printed = line.iter().map(|&byte| if (0x20..0x7F).contains(&byte) { byte as char } else { '.' });
        let printed: String = printed.collect();
        writeln!(text, "{sign} {:47}  |{printed}|", hex.join(" ")).expect("a string");
    }
}

fn near_frames() -> Vec<(&'static str, Vec<u8>)> {
    let hello = NearHello { versions: (VERSION, VERSION), program: "example 1.0".to_owned(), lease: 30.0 };
    let words = ["echo", "hi"].map(|word| word.as_bytes().to_vec().into());
    let options = [("timeout".to_owned(), Some(b"5".to_vec().into()))];
    let call = RemoteCall { argv: words.to_vec(), options: options.into(), ..RemoteCall::default() };
    let call = CallMessage { call, ..CallMessage::default() };
    vec![
        ("client: Hello", frame(Kind::Hello, 0, &pack(&hello))),
        ("client: Call, number 1", frame(Kind::Call, 1, &pack(&call))),
    ]
}

/// The dump that a server of now would make.
fn new_dump() -> String {
    let mut client = Client::start();
    let mut text = String::new();
    for (name, bytes) in near_frames() {
        client.write(&bytes);
        dump(&mut text, ">", name, &bytes);
    }
    client.expect(Kind::Result);
    dump(&mut text, "<", "server: the mark", MARK);
    let received = client.received.clone();
    client.close();
    let length = u32::from_le_bytes(received[16..20].try_into().expect("four bytes")) as usize;
    let hello = MARK.len()..MARK.len() + 4 + length;
    dump(&mut text, "<", "server: Hello", &received[hello.clone()]);
    dump(&mut text, "<", "server: Result, number 1", &received[hello.end..]);
    text
}

#[test]
fn the_example_of_the_page_is_what_the_crate_reads_and_writes() {
    spawnfd_tests::isolated!(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol.md");
        let page = fs::read_to_string(&path).expect("the page");
        let near: Vec<u8> = near_frames().into_iter().flat_map(|(_, bytes)| bytes).collect();
        let instead = || format!("the page's example is not that of this version; it would be\n{}", new_dump());
        assert!(dumped(&page, "> ") == near, "{}", instead());
        let far = dumped(&page, "< ");
        let (mut marker, mut decoder) = (Marker::default(), Decoder::default());
        decoder.feed(marker.after(&far).expect("a mark").expect("a mark"));
        let frames: Vec<Frame> = std::iter::from_fn(|| decoder.next_frame().expect("frames")).collect();
        let kinds: Vec<_> = frames.iter().map(|frame| (frame.kind.expect("known"), frame.call)).collect();
        assert_eq!(kinds, [(Kind::Hello, 0), (Kind::Result, 1)]);
        assert!(!decoder.is_within_a_frame());
        let hello: FarHello = unpack(&frames[0].payload, "hello").expect("a hello");
        assert_eq!((hello.versions, &*hello.machine), ((1, 1), "x86_64"));
        let ResultMessage::<Stored<Output>>::Output(Stored(output)) =
            unpack(&frames[1].payload, "result").expect("a result")
        else {
            panic!("a result of another kind")
        };
        assert_eq!((output.stop, output.code(), &*output.stdout), (Stop::Exited, Some(0), &b"hi\n"[..]));
        // The fields and their order are those of this version.
        assert!(pack(&hello) == frames[0].payload && result(&output) == frames[1].payload, "{}", instead());
    });
}

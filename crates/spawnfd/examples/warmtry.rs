use spawnfd::*;
use std::time::*;
fn main() {
    let warm = Warm::new(WarmOptions {
        mode: if std::env::args().nth(1).as_deref() == Some("fork") { Mode::Fork } else { Mode::Reserve },
        ..Default::default()
    })
    .unwrap();
    for p in ["true", "sh", "cat", "sed", "bash", "git", "ls"] {
        warm.add(p, Park::default()).unwrap();
    }
    let t = Instant::now();
    println!("fill {} {:?}", warm.fill(Duration::from_secs(10)), t.elapsed());
    println!("{:?}", warm.stats());
    for argv in [
        &["sh", "-c", "echo $0 $1 $X; pwd; umask", "a", "b"][..],
        &["cat", "/proc/self/cmdline"],
        &["cat", "/proc/self/comm"],
        &["ls", "-l", "/proc/self/fd"],
        &["bash", "-c", "echo $BASHPID $PPID; ls /nonexistent; exit 3"],
        &["sed", "-n", "1p", "/etc/hostname"],
        &["git", "--version"],
    ] {
        let out = Command::new(argv[0]).args(&argv[1..]).env("X", "y").warm(&warm).run().unwrap();
        println!(
            "{:?} {:?} {:?} {:?} {:?}",
            argv[0],
            out.started,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr),
            out.code()
        );
    }
    for p in ["true", "sh", "bash", "sed", "git", "cat"] {
        let args: &[&str] = match p {
            "sh" | "bash" => &["-c", ":"],
            "sed" => &["-n", "1p", "/etc/hostname"],
            "git" => &["--version"],
            "cat" => &["/etc/hostname"],
            _ => &[],
        };
        let mut times: [Vec<Duration>; 2] = Default::default();
        let mut cold = 0;
        for _ in 0..60 {
            for w in 0..2 {
                std::thread::sleep(Duration::from_millis(20));
                let t = Instant::now();
                let mut c = Command::new(p);
                c.args(args).stdout(Stdio::Null);
                if w == 1 {
                    c.warm(&warm);
                }
                let mut ch = c.spawn().unwrap();
                ch.wait().unwrap();
                times[w].push(t.elapsed());
                if w == 1 && matches!(ch.started(), Started::Cold(_)) {
                    cold += 1
                }
            }
        }
        for v in &mut times {
            v.sort();
        }
        println!(
            "{p}: cold {:?} warm {:?} ratio {:.2} (went cold {cold})",
            times[0][30],
            times[1][30],
            times[0][30].as_secs_f64() / times[1][30].as_secs_f64()
        );
    }
    println!("{:?}", warm.stats());
}

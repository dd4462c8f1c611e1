use spawnfd::*;
use std::time::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mode = if a[1] == "fork" { Mode::Fork } else { Mode::Reserve };
    let n: usize = a[2].parse().unwrap();
    let warm = Warm::new(WarmOptions { mode, ..Default::default() }).unwrap();
    warm.add("true", Park { depth: 4, ..Default::default() }).unwrap();
    warm.fill(Duration::from_secs(5));
    let mut v = vec![vec![], vec![], vec![]];
    for _ in 0..n {
        if a.len() > 3 {
            std::thread::sleep(Duration::from_millis(a[3].parse().unwrap()));
        } else {
            warm.fill(Duration::from_secs(5));
        }
        for w in 0..2 {
            let t = Instant::now();
            let mut c = Command::new("true");
            c.stdout(Stdio::Null);
            if w == 1 {
                c.warm(&warm);
            }
            let mut ch = c.spawn().unwrap();
            let b = t.elapsed();
            ch.wait().unwrap();
            v[w].push(t.elapsed());
            if w == 1 {
                v[2].push(b)
            };
            if w == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    for x in &mut v {
        x.sort();
    }
    ticks();
    println!(
        "cold {:?} warm {:?} (spawn {:?}) ratio {:.2}",
        v[0][n / 2],
        v[1][n / 2],
        v[2][n / 2],
        v[0][n / 2].as_secs_f64() / v[1][n / 2].as_secs_f64()
    );
}

use farbank_pm::model::{check,published::Use};
fn main(){ let t=std::time::Instant::now();
 let c=check::run(1,std::env::args().nth(1).map_or(100_000,|x|x.parse().unwrap()),|_|true,&mut |_|true);
 for r in &c.rows { println!("{:55} {:8.3} {:8.3} {:+6.1} % {} {}", r.name,r.published,r.modelled,r.error()*100.,match r.how{Use::Calibrated=>"cal".into(),Use::HeldOut(b)=>format!("held {:?}",b)}, if r.holds(){""}else{"MISS"}); }
 println!("rms {} holds {} steps {} in {:?} digest {:x}",c.curve_rms,c.holds(),c.steps,t.elapsed(),c.digest()); }

